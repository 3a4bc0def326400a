// A whole document in Markdown, with a span of it marked.

import { el } from "../shared/dom.js";
import { highlight } from "./highlight.js";
import { parseBlocks } from "./parser.js";
import { renderBlock } from "./render.js";

/** {node, mark}: the document, and the first element of what is marked: the characters from `start` to `end` of `text`. */
export function markedDocument(text, start, end) {
  const drawn = draw(text);
  const marked = drawn.filter(({ from, to }) => from < end && to > start);
  const wanted = letters(draw(text.slice(start, end)).map(({ node }) => node.textContent).join(""));
  const node = el("div", { class: "prose" }, ...drawn.map((block) => block.node));
  const mark = markWords(marked.map((block) => block.node), wanted) ?? markBlocks(marked.map((block) => block.node));
  for (const block of node.children) highlight(block);
  return { node, mark };
}

// In a file, a line ends where its author's editor was full; in a chat, where somebody ended it.
const FILE = { cite: () => null, drawFormula: (source) => source, lineBreak: () => " " };

function draw(text) {
  const blocks = parseBlocks(text, { open: false });
  return blocks.map((block, i) => ({
    from: block.from,
    to: blocks[i + 1]?.from ?? text.length,
    node: renderBlock(block, FILE),
  }));
}

function letters(text) {
  return text.replace(/\s+/g, "");
}

/** Wraps the text nodes in which these letters stand in <mark>; null when they are not found as they are. */
function markWords(nodes, wanted) {
  const parts = nodes.flatMap(textsOf).map((text) => ({ text, letters: letters(text.data) }));
  const at = parts.map((part) => part.letters).join("").indexOf(wanted);
  if (at < 0 || wanted === "") return null;
  let before = 0;
  let first = null;
  for (const part of parts) {
    const from = Math.max(0, at - before);
    const to = Math.min(part.letters.length, at + wanted.length - before);
    const { data } = part.text;
    const begin = at < before ? 0 : offset(data, from); // the spaces between two pieces are marked too
    const end = at + wanted.length > before + part.letters.length ? data.length : offset(data, to - 1) + 1;
    if (from < to) first = wrap(part.text, begin, end, first);
    before += part.letters.length;
  }
  return first;
}

function textsOf(node) {
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT, (text) =>
    text.parentElement.closest("figcaption") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT,
  );
  const found = [];
  while (walker.nextNode()) found.push(walker.currentNode);
  return found;
}

/** Where the letter with this number stands. */
function offset(text, letter) {
  let at = -1;
  for (let left = letter; left >= 0; left--) do at++; while (/\s/.test(text[at]));
  return at;
}

function wrap(text, from, to, first) {
  const range = document.createRange();
  range.setStart(text, from);
  range.setEnd(text, to);
  const mark = el("mark", { tabindex: first === null ? "-1" : null });
  range.surroundContents(mark);
  return first ?? mark;
}

/** What stands in the text in other words, as in a table, is marked as a whole. */
function markBlocks(nodes) {
  for (const node of nodes) node.classList.add("is-marked");
  nodes[0]?.setAttribute("tabindex", "-1");
  return nodes[0] ?? null;
}
