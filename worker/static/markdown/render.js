// Blocks -> DOM nodes. Only these elements, these attributes and text nodes can ever come out of a model's answer.

import { el } from "../shared/dom.js";
import { icon } from "../shared/icons.js";
import { parseInline } from "./inline.js";

const COPIED_MS = 1600;
const NO_BREAK_SPACE = "\u00a0"; // keeps a citation on the line of the word before it

/** `cite(number)` returns a node for a citation, or null when there is no such source. */
export function renderBlock(block, { cite, open = false }) {
  const context = { cite, open };
  return RENDERERS[block.type](block, context);
}

const RENDERERS = {
  paragraph: (block, context) => el("p", {}, ...inline(block.text, context)),
  heading: (block, context) => el(`h${Math.min(block.level + 2, 6)}`, {}, ...inline(block.text, context)),
  rule: () => el("hr"),
  quote: (block, context) => el("blockquote", {}, ...block.blocks.map((inner) => renderBlock(inner, context))),
  code: (block) => codeBlock(block),
  list: (block, context) => list(block, context),
  table: (block, context) => table(block, context),
};

function list(block, context) {
  const items = block.items.map((blocks) => el("li", {}, ...itemNodes(blocks, block.tight, context)));
  const start = block.ordered && block.start !== 1 ? block.start : null;
  return el(block.ordered ? "ol" : "ul", { start }, ...items);
}

function itemNodes(blocks, tight, context) {
  return blocks.flatMap((inner) =>
    tight && inner.type === "paragraph" ? inline(inner.text, context) : [renderBlock(inner, context)],
  );
}

function table(block, context) {
  const row = (tag, cells) =>
    el("tr", {}, ...cells.map((cell, i) => el(tag, { "data-align": block.align[i] }, ...inline(cell, context))));
  return el(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    el(
      "table",
      {},
      el("thead", {}, row("th", block.head)),
      el("tbody", {}, ...block.rows.map((cells) => row("td", cells))),
    ),
  );
}

function codeBlock(block) {
  const code = el("code", {}, block.text);
  const button = el("button", { type: "button", class: "copy" }, icon("copy"), "Copy");
  button.addEventListener("click", () => copy(code, button));
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, el("span", {}, block.language || "text"), button),
    el("pre", { tabindex: "0" }, code),
  );
}

async function copy(code, button) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.replaceChildren(icon("check"), "Copied");
  } catch {
    // Plain http from another machine has no clipboard: select the text, so that the keyboard can copy it.
    getSelection().selectAllChildren(code);
    button.replaceChildren(icon("copy"), "Selected: press Ctrl+C");
  }
  setTimeout(() => button.replaceChildren(icon("copy"), "Copy"), COPIED_MS);
}

function inline(text, context) {
  return nodes(parseInline(text, { open: context.open }), context);
}

function nodes(runs, context) {
  return runs.map((run, i) => {
    switch (run.type) {
      case "text":
        return document.createTextNode(runs[i + 1]?.type === "cite" ? keepTogether(run.text) : run.text);
      case "code":
        return el("code", {}, run.text);
      case "break":
        return el("br");
      case "cite":
        return context.cite(run.number) ?? document.createTextNode(`[${run.number}]`);
      case "link":
        return link(run, context);
      default:
        return el(run.type, {}, ...nodes(run.children, context));
    }
  });
}

function keepTogether(text) {
  return text.replace(/ $/, NO_BREAK_SPACE);
}

function link(run, context) {
  const children = nodes(run.children, context);
  const href = safeAddress(run.href);
  if (href === null) return el("span", {}, ...children);
  return el("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
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
