// Files of a question, each a small label with its name and length.

import { el } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { icon } from "../shared/icons.js";
import { isPicture } from "./attached.js";

/** Of a question that was asked: each opens to show its text. */
export function fileDetails({ name, text }) {
  if (isPicture({ text })) return el("img", { class: "picture", src: text, alt: `Picture of this question: ${name}` });
  const length = el("span", { class: "quiet" }, `${count(text.length)} characters`);
  const summary = el("summary", {}, icon("file"), el("span", { class: "file-name" }, name), length);
  return el("details", { class: "file-chip" }, summary, el("pre", { tabindex: "0", dir: "auto" }, text));
}

/** Of a question that is being written. */
export function fileChip({ name, text }, remove) {
  const close = { type: "button", class: "icon-button", "aria-label": `Remove ${name}`, click: remove };
  const shown = isPicture({ text })
    ? [el("img", { class: "thumbnail", src: text, alt: "" }), el("span", { class: "file-name" }, name)]
    : [icon("file"), el("span", { class: "file-name" }, name), el("span", { class: "quiet" }, `${count(text.length)} characters`)];
  return el("li", { class: "file-chip" }, ...shown, el("button", close, icon("close")));
}
