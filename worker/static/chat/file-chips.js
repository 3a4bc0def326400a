// Files of a question, each a small label with its name and length.

import { el } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { icon } from "../shared/icons.js";

/** Of a question that was asked: each opens to show its text. */
export function fileDetails({ name, text }) {
  const length = el("span", { class: "quiet" }, `${count(text.length)} characters`);
  const summary = el("summary", {}, icon("file"), el("span", { class: "file-name" }, name), length);
  return el("details", { class: "file-chip" }, summary, el("pre", { tabindex: "0", dir: "auto" }, text));
}

/** Of a question that is being written. */
export function fileChip({ name, text }, remove) {
  const length = el("span", { class: "quiet" }, `${count(text.length)} characters`);
  const close = { type: "button", class: "icon-button", "aria-label": `Remove ${name}`, click: remove };
  return el("li", { class: "file-chip" }, icon("file"), el("span", { class: "file-name" }, name), length, el("button", close, icon("close")));
}
