// The document behind a citation, opened at the exact characters: formatted if it is Markdown, or as it was written.

import { markedDocument } from "../markdown/document.js";
import { request } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";
import { recall, remember } from "../shared/preferences.js";

const FORMATTED = /\.(md|markdown)$/i;
const AROUND_CHARS_MAX = 20_000; // shown before and after the span: a whole book would make the page slow

export class SourceDialog {
  constructor() {
    this.dialog = byId("source");
    this.title = byId("source-title");
    this.file = byId("source-file");
    this.text = byId("source-text");
    this.form = byId("source-form");
    this.form.addEventListener("change", ({ target }) => this.choose(target.value));
    byId("source-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // the backdrop
    });
  }

  /** `passage` as in the event firsttoken:sources; its offsets count Unicode characters. */
  async open(passage) {
    this.title.textContent = passage.title || passage.filename;
    this.file.textContent = passage.filename;
    this.form.hidden = true;
    this.text.replaceChildren(el("p", { class: "quiet" }, "Opening the document"));
    this.dialog.showModal();
    try {
      const response = await request("GET", `/v1/files/${encodeURIComponent(passage.file_id)}/content?form=text`);
      this.show(await response.text(), passage);
    } catch (error) {
      this.text.replaceChildren(el("p", { class: "problem" }, error.message), el("p", {}, passage.text));
    }
  }

  show(content, passage) {
    const [start, end] = utf16Span(content, passage.start_char, passage.end_char);
    const from = Math.max(0, start - AROUND_CHARS_MAX);
    const to = Math.min(content.length, end + AROUND_CHARS_MAX);
    this.part = { text: content.slice(from, to), start: start - from, end: end - from, cut: [from > 0, to < content.length] };
    this.form.hidden = !FORMATTED.test(passage.filename);
    const form = this.form.hidden ? "written" : recall("source-form", "formatted");
    this.form.querySelector(`[value="${form}"]`).checked = true;
    this.draw(form);
  }

  choose(form) {
    remember("source-form", form);
    this.draw(form);
  }

  draw(form) {
    const { node, mark } = form === "formatted" ? markedDocument(this.part.text, this.part.start, this.part.end) : written(this.part);
    const [before, after] = this.part.cut.map((cut) => cut && el("p", { class: "quiet" }, "…"));
    this.text.replaceChildren(el("div", { class: "source-content" }, before, node, after));
    mark?.scrollIntoView({ block: "center" });
    mark?.focus({ preventScroll: true });
  }
}

function written({ text, start, end }) {
  const mark = el("mark", { tabindex: "-1" }, text.slice(start, end));
  return { node: el("div", { class: "as-written" }, text.slice(0, start), mark, text.slice(end)), mark };
}

/** Offsets in characters -> offsets in JavaScript's UTF-16 units. */
function utf16Span(text, startChar, endChar) {
  const start = advance(text, 0, startChar);
  return [start, advance(text, start, endChar - startChar)];
}

function advance(text, from, characters) {
  let at = from;
  for (let left = characters; left > 0 && at < text.length; left--) at += text.codePointAt(at) > 0xffff ? 2 : 1;
  return at;
}
