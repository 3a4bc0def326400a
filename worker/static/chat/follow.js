// Keep the end of the answer in view while it is written, unless the user has scrolled up.

import { byId } from "../shared/dom.js";

const NEAR_PX = 80; // closer to the end than this counts as reading the end

export class Follow {
  constructor() {
    this.view = byId("view");
    this.button = byId("to-end");
    this.following = true;
    this.top = 0;
    this.view.addEventListener("scroll", () => this.look(), { passive: true });
    this.button.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.grown()).observe(byId("column"));
  }

  look() {
    const left = this.view.scrollHeight - this.view.scrollTop - this.view.clientHeight;
    // Only who scrolls up stops following: what grows below, or is laid out late, moves the end away by itself.
    const { scrollTop } = this.view;
    this.following = left < NEAR_PX || (this.following && scrollTop >= this.top);
    this.top = scrollTop;
    this.button.hidden = this.following;
  }

  grown() {
    if (this.following) this.view.scrollTop = this.view.scrollHeight;
    else this.look();
  }

  /** What is not an answer is read from its beginning. */
  toStart() {
    this.following = false;
    this.button.hidden = true;
    this.top = this.view.scrollTop = 0;
  }

  toEnd() {
    this.following = true;
    this.button.hidden = true;
    this.view.scrollTop = this.view.scrollHeight;
  }
}
