// A block of code with its language and a button that copies it.

import { copyButton } from "../shared/copy.js";
import { el } from "../shared/dom.js";

export function codeBlock(text, language) {
  return el(
    "figure",
    { class: "code", "data-language": language || null },
    el("figcaption", {}, el("span", {}, language || "text"), copyButton((button) => codeOf(button).textContent, codeOf)),
    el("pre", { tabindex: "0", dir: "ltr" }, el("code", {}, text)),
  );
}

/** A block that is still being written may have got this button later than its code. */
function codeOf(button) {
  return button.closest("figure").querySelector("code");
}
