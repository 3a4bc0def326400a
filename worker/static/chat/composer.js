// The question field. Enter sends, Shift+Enter breaks the line, Escape stops the answer.

import { byId } from "../shared/dom.js";
import { icon } from "../shared/icons.js";

const HEIGHT_PX_MAX = 220; // a longer question scrolls inside

export class Composer {
  /** Callbacks: `send(text)`, `stop()`, and `begin()` when the user starts to write. */
  constructor({ send, stop, begin }) {
    this.form = byId("composer");
    this.input = byId("question");
    this.button = byId("send");
    this.send = send;
    this.stop = stop;
    this.running = false;
    this.input.addEventListener("focus", begin);
    this.input.addEventListener("input", () => {
      this.fit();
      begin();
    });
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.show(false);
  }

  key(event) {
    if (event.key === "Escape" && this.running) this.stop();
    // While an input method composes, Enter picks a word.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!this.running) this.submit();
  }

  submit() {
    if (this.running) return this.stop();
    const text = this.input.value.trim();
    if (text === "") return this.input.focus();
    this.input.value = "";
    this.fit();
    return this.send(text);
  }

  fit() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, HEIGHT_PX_MAX)}px`;
    this.button.dataset.ready = String(this.running || this.input.value.trim() !== "");
  }

  /** While an answer is being written the button stops it. */
  show(running) {
    this.running = running;
    const label = running ? "Stop the answer" : "Send the question";
    this.button.replaceChildren(icon(running ? "stop" : "send"));
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
    this.button.dataset.running = String(running);
    this.fit();
  }

  focus() {
    // On a touch screen focus would open the keyboard over what the user came to read.
    if (matchMedia("(pointer: fine)").matches) this.input.focus();
  }
}
