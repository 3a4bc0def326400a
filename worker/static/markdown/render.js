// Tokens -> DOM nodes. Only these elements, these attributes and text nodes can ever come out of a model's answer, and
// what KaTeX makes of a formula: no string becomes markup, so there is nothing to sanitise.

import { el } from "../shared/dom.js";
import { codeBlock } from "./code-block.js";
import { formula } from "./formula.js";

const NO_BREAK_SPACE = "\u00a0"; // keeps a citation on the line of the word before it
const LAST_WORD = /(\S{1,24}) ?$/;
const DASHED = /^(?=.*-)\S{1,24}$/; // --option, which lines would break after its first dash
const PUNCTUATION = /^[.,;:!?)\]]+/;
const TASK = /^\[([ xX])\] /;
const LINK = { target: "_blank", rel: "noopener noreferrer nofollow" };

const USUAL = { drawFormula: formula, lineBreak: () => el("br") };

/** The node of one block. `cite(number)` returns a node for a citation, or null when there is no such source;
 *  `drawFormula(source)` one for a formula, `lineBreak()` one for the end of a line within a paragraph. */
export function renderBlock({ tokens }, given) {
  const draw = { ...USUAL, ...given };
  const root = document.createDocumentFragment();
  let at = root;
  for (const token of tokens) {
    if (token.hidden) continue; // the paragraphs of a tight list
    if (token.nesting > 0) at = at.appendChild(opened(token));
    else if (token.nesting < 0) at = at.parentNode;
    else if (token.type === "inline") at.append(...inline(token.children, draw));
    else at.append(BLOCKS[token.type](token));
  }
  for (const table of root.querySelectorAll("table")) scroll(table);
  for (const item of root.querySelectorAll("li")) showTask(item);
  // Only now that it is filled: Chromium looks for the direction again at every change.
  root.firstChild.dir = "auto";
  return root.firstChild;
}

const BLOCKS = {
  hr: () => el("hr"),
  fence: ({ content, info }) => codeBlock(content.replace(/\n$/, ""), info.trim().split(/\s/)[0]),
};

const CONTAINERS = new Set([
  "p", "ul", "ol", "li", "blockquote", "table", "thead", "tbody", "tr", "th", "td", "strong", "em",
]);

function opened(token) {
  if (token.type === "heading_open") return el(`h${Math.min(Number(token.tag[1]) + 2, 6)}`);
  if (token.type === "link_open") return link(token.attrGet("href"));
  if (token.type === "s_open") return el("del");
  if (!CONTAINERS.has(token.tag)) throw new Error(`no element for ${token.type}`);
  return el(token.tag, {
    start: token.attrGet("start"),
    "data-align": token.attrGet("style")?.replace("text-align:", ""),
  });
}

/** "[ ]" and "[x]" at the beginning of an item, as boxes. */
function showTask(item) {
  const text = (item.firstChild?.localName === "p" ? item.firstChild : item).firstChild;
  const state = text?.nodeType === Node.TEXT_NODE ? TASK.exec(text.data)?.[1] : undefined;
  if (state === undefined) return;
  item.className = "task";
  text.data = text.data.replace(TASK, state === " " ? "☐ " : "☑ ");
}

function scroll(table) {
  const box = el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" });
  table.replaceWith(box);
  box.append(table);
}

function inline(tokens, { cite, drawFormula, lineBreak }) {
  const root = document.createDocumentFragment();
  let at = root;
  for (const token of tokens) {
    if (token.nesting > 0) at = at.appendChild(opened(token));
    else if (token.nesting < 0) at = at.parentNode;
    else if (token.type === "cite") at.append(cite(Number(token.content)) ?? `[${token.content}]`);
    else if (token.type === "math") at.append(drawFormula(token.content));
    else if (token.type === "softbreak") at.append(lineBreak());
    else at.append(LEAVES[token.type](token));
  }
  root.normalize();
  for (const chip of root.querySelectorAll("button")) keepTogether(chip);
  return root.childNodes;
}

const LEAVES = {
  text: ({ content }) => content,
  text_special: ({ content }) => content,
  code_inline: ({ content }) => el("code", { class: DASHED.test(content) ? "word" : null }, content),
  hardbreak: () => el("br"),
  // Pictures are not loaded: fetching one would tell its host who reads, and a model can be made to write any address.
  image: (token) => link(token.attrGet("src"), token.content || "image"),
};

function link(address, ...children) {
  const href = safeAddress(address);
  return href === null ? el("span", {}, ...children) : el("a", { href, ...LINK }, ...children);
}

/** The address if it is http(s) or relative; null for javascript:, data: and everything else. */
export function safeAddress(href) {
  try {
    const { protocol } = new URL(href, location.href);
    return protocol === "http:" || protocol === "https:" ? href : null;
  } catch {
    return null;
  }
}

/** A citation stays on the line of the word before it, with the punctuation after it. */
function keepTogether(chip) {
  let keep = chip.previousSibling;
  if (!keep?.classList?.contains("keep")) {
    keep = el("span", { class: "keep" }, cutWord(chip.previousSibling));
    chip.before(keep);
  }
  keep.append(chip);
  keep.append(cut(keep.nextSibling, PUNCTUATION));
}

/** The last word before a chip; a space after it becomes one that does not break. */
function cutWord(text) {
  return cut(text, LAST_WORD).replace(/ $/, NO_BREAK_SPACE);
}

/** Take what matches out of a text node. */
function cut(node, pattern) {
  const match = node?.nodeType === Node.TEXT_NODE ? pattern.exec(node.data) : null;
  if (match === null) return "";
  node.data = node.data.replace(pattern, "");
  return match[0];
}
