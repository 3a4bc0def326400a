// The empty page: example questions under a bar that shows the stages of an answer.

import { byId } from "../shared/dom.js";
import { bar } from "../shared/bar.js";

// The shape of a usual answer, in shares of its time.
const USUAL = {
  edge: 1, hydrate: 2, retrieve: 9, assemble: 1, tokenize: 2, queue: 3, prefill: 20, first_token: 2, decode: 56,
  flush: 4,
};

export class Welcome {
  /** `ask(question)` is called when the user picks an example. */
  constructor(ask) {
    this.node = byId("welcome");
    const pieces = Object.entries(USUAL).map(([name, duration_ms]) => ({ name, duration_ms, gap: false }));
    byId("motif").append(bar(pieces, 100));
    for (const example of this.node.querySelectorAll("[data-example]")) {
      example.addEventListener("click", () => ask(example.querySelector("b").textContent));
    }
  }

  show(visible) {
    this.node.hidden = !visible;
  }
}
