// Long texts that are pasted into the question: each becomes a file of it, so that the question stays readable.

import { byId } from "../shared/dom.js";
import { fileChip } from "./file-chips.js";

const LONG_CHARS = 4000; // about a page and a half
const NAME = "pasted text";

export class Pastes {
  /** `changed()` is called when there is one more or one less. */
  constructor(input, changed) {
    this.list = byId("pastes");
    this.changed = changed;
    this.files = [];
    input.addEventListener("paste", (event) => {
      const text = event.clipboardData?.getData("text/plain") ?? "";
      if (text.length < LONG_CHARS || event.clipboardData.files.length > 0) return;
      event.preventDefault();
      this.show([...this.files, { name: `${NAME}${this.files.length > 0 ? ` ${this.files.length + 1}` : ""}.txt`, text }]);
    });
  }

  get length() {
    return this.files.reduce((sum, { text }) => sum + text.length, 0);
  }

  show(files) {
    this.files = files;
    this.list.hidden = files.length === 0;
    this.list.replaceChildren(...files.map((file) => fileChip(file, () => this.show(this.files.filter((other) => other !== file)))));
    this.changed();
  }
}
