// Of several questions of one kind only the newest counts: the older are broken off, and their answers are never shown.

export class Latest {
  constructor(busy) {
    this.busy = busy; // called with true while an answer is awaited
    this.controller = null;
  }

  /** `work(signal)` asks; `show(answer)` runs only if nothing newer was asked meanwhile. What is asked `quietly` dims
   *  nothing: the same question again. */
  async run(work, show, quietly = false) {
    this.controller?.abort();
    const controller = (this.controller = new AbortController());
    if (!quietly) this.busy(true);
    try {
      const answer = await work(controller.signal);
      if (controller === this.controller) show(answer);
    } catch (error) {
      if (controller === this.controller && error.name !== "AbortError") throw error;
    } finally {
      if (controller === this.controller) this.busy(false);
    }
  }
}
