// The text of a block -> runs of emphasis, code, links and citations, pure and linear in the length of the text.

const DEPTH_MAX = 5; // emphasis inside emphasis inside …: deeper reads as plain text
const MARK_MAX = 3;
const MARKS = { 1: ["em"], 2: ["strong"], 3: ["em", "strong"] };
const EMPHASIS = { "*": MARKS, _: MARKS, "~": { 2: ["del"] } };

const ESCAPE = /\\([\\`*_{}[\]()#+\-.!|>~<])/y;
const CITATION = /\[(\d{1,3})\](?!\()/y;
const LABEL = String.raw`!?\[([^[\]]{0,500})\]`;
const ADDRESS = String.raw`([^\s()<>]{0,2000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,500})?)`;
const TITLE = String.raw`(?:\s{1,20}"[^"]{0,300}")?`;
const LINK = new RegExp(String.raw`${LABEL}\(\s{0,20}${ADDRESS}${TITLE}\s{0,20}\)`, "y");
const AUTOLINK = /<(https?:\/\/[^\s<>]{1,2000})>/y;
const BARE = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const TRAILING = /[.,;:!?)\]}*_~]+$/; // punctuation after an address belongs to the sentence
const SPECIAL = /[\\`*_~[!<\n]|https?:\/\//g;

/** [{type: text|code, text} | {type: strong|em|del, children} | {type: link, href, children} | {type: cite, number}
 *  | {type: break}]. `open` treats a mark that has not been closed yet as if it closed at the end: a stream that is
 *  still being written does not flicker. */
export function parseInline(text, { open = false } = {}) {
  return new Inline(text, open, 0).parse();
}

class Inline {
  constructor(text, open, depth) {
    this.text = text;
    this.open = open;
    this.depth = depth;
    this.nodes = [];
    this.unclosed = new Set(); // marks known to have no closer ahead, so that each is searched in vain only once
  }

  parse() {
    let at = 0;
    while (at < this.text.length) {
      SPECIAL.lastIndex = at;
      const next = SPECIAL.exec(this.text)?.index ?? this.text.length;
      this.plain(this.text.slice(at, next));
      if (next >= this.text.length) break;
      at = this.special(next);
    }
    return this.nodes;
  }

  plain(text) {
    const last = this.nodes.at(-1);
    if (text === "") return;
    if (last?.type === "text") last.text += text;
    else this.nodes.push({ type: "text", text });
  }

  /** Consume the construct at `at`; returns the next position. A mark without a meaning is text. */
  special(at) {
    const end = this.lineBreak(at) ?? this.escape(at) ?? this.code(at) ?? this.link(at) ?? this.emphasis(at);
    if (end !== null) return end;
    this.plain(this.text[at]);
    return at + 1;
  }

  match(pattern, at) {
    pattern.lastIndex = at;
    return pattern.exec(this.text);
  }

  lineBreak(at) {
    if (this.text[at] !== "\n") return null;
    this.nodes.push({ type: "break" });
    return at + 1;
  }

  escape(at) {
    const match = this.match(ESCAPE, at);
    if (match === null) return null;
    this.plain(match[1]);
    return at + 2;
  }

  code(at) {
    if (this.text[at] !== "`") return null;
    const mark = this.run(at, "`");
    const start = at + mark.length;
    const end = this.closingRun(mark, start);
    if (end === null) {
      this.plain(mark);
      return start;
    }
    this.nodes.push({ type: "code", text: this.text.slice(start, end).replace(/^ (.*[^ ].*) $/s, "$1") });
    return end + mark.length;
  }

  closingRun(mark, from) {
    for (let at = from; !this.unclosed.has(mark); ) {
      const found = this.text.indexOf(mark, at);
      if (found < 0) {
        this.unclosed.add(mark);
        break;
      }
      const run = this.run(found, "`");
      if (run.length === mark.length) return found;
      at = found + run.length;
    }
    return this.open && from < this.text.length ? this.text.length : null;
  }

  link(at) {
    const cite = this.match(CITATION, at);
    if (cite !== null) {
      this.nodes.push({ type: "cite", number: Number(cite[1]) });
      return CITATION.lastIndex;
    }
    const link = this.match(LINK, at);
    if (link !== null) return this.address(link[2], this.inner(link[1]), LINK.lastIndex);
    const auto = this.match(AUTOLINK, at);
    if (auto !== null) return this.address(auto[1], [{ type: "text", text: auto[1] }], AUTOLINK.lastIndex);
    const bare = this.match(BARE, at);
    if (bare === null) return null;
    const href = bare[0].replace(TRAILING, "");
    return this.address(href, [{ type: "text", text: href }], at + href.length);
  }

  address(href, children, end) {
    this.nodes.push({ type: "link", href, children });
    return end;
  }

  emphasis(at) {
    const mark = this.markAt(at);
    if (mark === null || this.depth >= DEPTH_MAX) return null;
    const start = at + mark.length;
    const end = this.closer(mark, start);
    if (end === null) return null;
    const children = this.inner(this.text.slice(start, end));
    const [outer, ...inner] = EMPHASIS[mark[0]][mark.length];
    this.nodes.push({ type: outer, children: inner.length > 0 ? [{ type: inner[0], children }] : children });
    return end + mark.length;
  }

  inner(text) {
    return new Inline(text, this.open, this.depth + 1).parse();
  }

  /** The emphasis mark that opens here: not followed by a space, and `_` not inside a word. */
  markAt(at) {
    const mark = this.run(at, this.text[at], MARK_MAX + 1);
    const after = this.text[at + mark.length];
    if (EMPHASIS[mark[0]]?.[mark.length] === undefined || after === undefined || /\s/.test(after)) return null;
    return mark[0] === "_" && /\w/.test(this.text[at - 1] ?? "") ? null : mark;
  }

  /** The characters from `at` on that equal `char`, at most `max`. */
  run(at, char, max = Infinity) {
    let end = at;
    while (this.text[end] === char && end - at < max) end++;
    return this.text.slice(at, end);
  }

  /** Where a mark of this kind closes: at a run as long as itself, or at the end of one that closes two at once. */
  closer(mark, from) {
    for (let at = from; !this.unclosed.has(mark); ) {
      const found = this.text.indexOf(mark, at);
      if (found < 0) {
        this.unclosed.add(mark);
        break;
      }
      const run = this.run(found, mark[0]);
      at = found + run.length;
      const fits = run.length === mark.length || run.length === MARK_MAX;
      if (fits && this.canClose(mark, at - mark.length, from)) return at - mark.length;
    }
    return this.open && mark.length > 1 ? this.text.length : null;
  }

  canClose(mark, end, from) {
    if (end === from || /[\s\\]/.test(this.text[end - 1])) return false;
    return mark[0] !== "_" || !/\w/.test(this.text[end + mark.length] ?? "");
  }
}
