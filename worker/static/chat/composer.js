// The question field. Enter sends, also while an answer is written; Shift+Enter breaks the line.

import { byId } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { icon } from "../shared/icons.js";
import { composed, isPicture, joined, taken } from "./attached.js";
import { composes } from "./keys.js";
import { Pastes } from "./pastes.js";

const HEIGHT_PX_MAX = 220; // a longer question scrolls inside
const CHARS_MAX = 1_000_000; // what the worker takes of one text
const PLACEHOLDERS = ["Ask a question", "Ask about the pasted text", "Ask about the pasted texts"];
const SHOWN = "Ask about what is to be seen";
const DRAFT_MS = 300; // a draft is kept once the keys rest that long

export class Composer {
  /** Callbacks: `send(text)`, `stop()`, `begin(writes)` when the user is about to write, or does, and `changed(text)` a moment
   *  later; `text` is the question with its files. */
  constructor({ send, stop, begin, changed }) {
    this.form = byId("composer");
    this.input = byId("question");
    this.button = byId("send");
    this.send = send;
    this.stop = stop;
    this.changed = changed;
    this.timer = null;
    this.frame = null;
    this.limit = byId("limit");
    this.pastes = new Pastes(this.input, () => {
      this.fit();
      this.later();
    });
    this.running = false;
    this.input.addEventListener("pointerdown", () => begin(false)); // the page gives the focus by itself: that says nothing
    this.input.addEventListener("input", () => {
      this.fit();
      begin(true);
      this.later();
    });
    addEventListener("pagehide", () => this.keep());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.show(false);
  }

  key(event) {
    if (event.key !== "Enter" || event.shiftKey || composes(event)) return;
    event.preventDefault();
    if (!this.running || this.ready) this.submit();
  }

  submit() {
    if (this.stops) return this.stop();
    if (!this.ready) return this.input.focus();
    const { text } = this;
    this.fill("");
    this.changed("");
    return this.send(text);
  }

  get text() {
    return composed(this.input.value.trim(), this.pastes.files);
  }

  get length() {
    return this.input.value.length + this.pastes.length;
  }

  get ready() {
    return this.input.value.trim() !== "" && this.length <= CHARS_MAX;
  }

  /** Show a draft; what is there is kept already. */
  fill(text) {
    const { question, files } = taken(text);
    this.input.value = question;
    this.pastes.show(files);
    clearTimeout(this.timer);
    this.timer = null;
  }

  /** What was typed before the page was ready. */
  add(text) {
    if (text === "") return;
    this.fill(joined([this.text, text].filter((each) => each !== "")));
    this.later();
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.keep(), DRAFT_MS);
  }

  keep() {
    if (this.timer === null) return;
    clearTimeout(this.timer);
    this.timer = null;
    this.changed(this.pastes.files.length > 0 ? this.text : this.input.value);
  }

  /** The height comes with the next frame: it lays the page out, which must not delay a question. */
  fit() {
    this.frame ??= requestAnimationFrame(() => this.grow());
    const { length } = this;
    this.limit.hidden = length <= CHARS_MAX;
    this.limit.textContent = `${count(length)} characters. A question has at most ${count(CHARS_MAX)}.`;
    this.button.dataset.ready = String(this.running || this.ready);
    if (this.button.dataset.running !== String(this.stops)) this.dress();
    const { files } = this.pastes;
    this.input.placeholder = files.some(isPicture) ? SHOWN : PLACEHOLDERS[Math.min(files.length, 2)];
  }

  grow() {
    this.frame = null;
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, HEIGHT_PX_MAX)}px`;
  }

  show(running) {
    this.running = running;
    this.fit();
  }

  /** While an answer is being written and nothing else is, the button stops it. */
  get stops() {
    return this.running && !this.ready;
  }

  dress() {
    const label = this.stops ? "Stop the answer" : "Send the question";
    this.button.replaceChildren(icon(this.stops ? "stop" : "send"));
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
    this.button.dataset.running = String(this.stops);
  }

  focus() {
    // On a touch screen focus would open the keyboard over what the user came to read.
    if (matchMedia("(pointer: fine)").matches) this.input.focus();
  }
}
