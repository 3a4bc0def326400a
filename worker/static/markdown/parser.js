// The text of an answer -> its top-level blocks as tokens of markdown-it, pure.

import MarkdownIt from "../vendor/markdown-it.js";
import { citations } from "./citations.js";
import { math } from "./math.js";
import { openMarks } from "./open-marks.js";

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true })
  // Left out: what reads a citation as a reference to a link, and what makes another block of a line when the next
  // characters come ("text" and "-" would be a heading until a space follows) or when a model indents carelessly.
  .disable(["reference", "lheading", "code"])
  .use(citations)
  .use(math)
  .use(openMarks);
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false }); // "main.py" is a file, and .py a country
parser.validateLink = () => true; // the renderer decides, see `safeAddress`

/** [{from, tokens}]: where each block begins in `text` (its lines end in "\n"), and its tokens. `open`: the text is
 *  not complete, and a mark that has not been closed yet counts as if it closed at the end: it does not flicker. */
export function parseBlocks(text, { open = false } = {}) {
  const starts = lineStarts(text);
  const blocks = [];
  for (const token of parser.parse(text, { open })) {
    if (token.level === 0 && token.nesting >= 0) blocks.push({ from: starts[token.map[0]], tokens: [] });
    blocks.at(-1).tokens.push(token);
  }
  return blocks;
}

function lineStarts(text) {
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return starts;
}
