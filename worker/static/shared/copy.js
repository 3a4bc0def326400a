// A button that copies a text to the clipboard.

import { el } from "./dom.js";
import { icon } from "./icons.js";

const COPIED_MS = 1600;

/** Whether it is in the clipboard; else `node` is selected, so that the keyboard can copy it. */
export async function copyText(text, node) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(node); // plain http from another machine has no clipboard
    return false;
  }
}

/** `text(button)` gives what is copied; `node(button)` is selected instead where there is no clipboard. */
export function copyButton(text, node, { class: name = "copy", label = "Copy" } = {}) {
  const show = (image, words) => button.replaceChildren(icon(image), words);
  const button = el("button", { type: "button", class: name, click: copy });
  let timer = null;
  async function copy() {
    if (await copyText(text(button), node(button))) show("check", "Copied");
    else show("copy", "Selected: press Ctrl+C");
    clearTimeout(timer);
    timer = setTimeout(() => show("copy", label), COPIED_MS);
  }
  show("copy", label);
  return button;
}
