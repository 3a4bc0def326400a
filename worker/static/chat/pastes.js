// Long texts that are pasted into the question, and pictures: each becomes a file of it, so that the question stays readable.

import { byId } from "../shared/dom.js";
import { isPicture } from "./attached.js";
import { fileChip } from "./file-chips.js";
import { pictureFile } from "./picture.js";

const LONG_CHARS = 4000; // about a page and a half
const NAME = "pasted text";
const PICTURE_CHARS_MAX = 3_500_000; // of their data URLs: a request has at most four megabytes

export class Pastes {
  /** `changed()` is called when there is one more or one less. */
  constructor(input, changed) {
    this.list = byId("pastes");
    this.input = input;
    this.changed = changed;
    this.files = [];
    input.addEventListener("paste", (event) => {
      const text = event.clipboardData?.getData("text/plain") ?? "";
      if (text.length < LONG_CHARS || event.clipboardData.files.length > 0) return;
      event.preventDefault();
      this.show([...this.files, { name: this.freeName(), text }]);
    });
  }

  freeName() {
    let n = 1;
    const name = () => `${NAME}${n === 1 ? "" : ` ${n}`}.txt`;
    while (this.files.some((file) => file.name === name())) n += 1;
    return name();
  }

  get length() {
    return this.files.filter((file) => !isPicture(file)).reduce((sum, { text }) => sum + text.length, 0);
  }

  /** Add pictures that somebody chose. Raises an Error that says what is wrong with one. */
  async take(pictures) {
    for (const picture of pictures) {
      const file = await pictureFile(picture);
      const chars = this.files.filter(isPicture).reduce((sum, { text }) => sum + text.length, file.text.length);
      if (chars > PICTURE_CHARS_MAX) throw new Error("These are more pictures than one question can have.");
      this.show([...this.files, file]);
    }
  }

  show(files) {
    this.files = files;
    this.list.hidden = files.length === 0;
    this.list.replaceChildren(...files.map((file) => fileChip(file, () => this.remove(file))));
    this.changed();
  }

  /** The keyboard goes on in the question: its button is gone. */
  remove(file) {
    this.show(this.files.filter((other) => other !== file));
    this.input.focus();
  }
}
