// A button that copies a text to the clipboard.

import { el } from "./dom.js";
import { icon } from "./icons.js";

const COPIED_MS = 1600;

/** `text(button)` gives what is copied; `node(button)` is selected instead where there is no clipboard. */
export function copyButton(text, node, { class: name = "copy", label = "Copy" } = {}) {
  const show = (image, words) => button.replaceChildren(icon(image), words);
  const button = el("button", { type: "button", class: name, click: copy });
  let timer = null;
  async function copy() {
    try {
      await navigator.clipboard.writeText(text(button));
      show("check", "Copied");
    } catch {
      // Plain http from another machine has no clipboard: select the text, so that the keyboard can copy it.
      getSelection().selectAllChildren(node(button));
      show("copy", "Selected: press Ctrl+C");
    }
    clearTimeout(timer);
    timer = setTimeout(() => show("copy", label), COPIED_MS);
  }
  show("copy", label);
  return button;
}
