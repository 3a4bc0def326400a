// The reasoning of the model, collapsed above its answer.

import { el } from "../shared/dom.js";
import { icon } from "../shared/icons.js";

export class Thought {
  constructor() {
    this.text = el("pre", { tabindex: "0" });
    const summary = el("summary", {}, el("span", { class: "step-preview" }, "Reasoning"), icon("chevron"));
    this.node = el("details", { class: "step thought" }, summary, el("div", { class: "step-body" }, this.text));
  }

  write(delta) {
    this.text.append(delta);
  }
}
