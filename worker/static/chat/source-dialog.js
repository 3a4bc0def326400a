// The document behind a citation, opened at the exact characters.

import { request } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";

const AROUND_CHARS_MAX = 20_000; // shown before and after the span: a whole book would make the page slow

export class SourceDialog {
  constructor() {
    this.dialog = byId("source");
    this.title = byId("source-title");
    this.file = byId("source-file");
    this.text = byId("source-text");
    byId("source-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // the backdrop
    });
  }

  /** `passage` as in the event firsttoken:sources; its offsets count Unicode characters. */
  async open(passage) {
    this.title.textContent = passage.title || passage.filename;
    this.file.textContent = passage.filename;
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
    const mark = el("mark", { tabindex: "-1" }, content.slice(start, end));
    const before = (from > 0 ? "…" : "") + content.slice(from, start);
    const after = content.slice(end, to) + (to < content.length ? "…" : "");
    this.text.replaceChildren(el("div", { class: "source-content" }, before, mark, after));
    mark.scrollIntoView({ block: "center" });
    mark.focus({ preventScroll: true });
  }
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
