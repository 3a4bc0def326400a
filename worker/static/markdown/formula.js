// Formulas, typeset by KaTeX, which is fetched when a text has the first one. Until it is there, where it cannot be had and
// where it cannot read a formula, the formula stays as the model wrote it.

import { el } from "../shared/dom.js";

const FOLDER = new URL("../vendor/katex/", import.meta.url);
const OPTIONS = {
  throwOnError: true, // we show the source instead
  strict: "ignore",
  trust: false, // no links, pictures or classes out of a formula
  maxSize: 20, // em: a model must not cover the page with a rule
  maxExpand: 500, // macros
};
const KEPT_MAX = 300; // typeset formulas; the open end of an answer is drawn anew with every frame

let katex = null;
let fetching = null;
const waiting = new Set();
const kept = new Map();

/** The node of a formula with its delimiters. */
export function formula(source) {
  const node = el("span", { class: "math", dir: "ltr", "data-display": isDisplayed(source) }, source);
  if (katex !== null) typeset(node, source);
  else wait(node);
  return node;
}

function isDisplayed(source) {
  return source.startsWith("$$") || source.startsWith("\\[");
}

function wait(node) {
  waiting.add(node);
  fetching ??= fetchKatex();
}

async function fetchKatex() {
  const style = el("link", { rel: "stylesheet", href: new URL("katex.css", FOLDER).href });
  document.head.append(style);
  try {
    await import(new URL("katex.js", FOLDER).href);
    katex = globalThis.katex;
    for (const node of waiting) typeset(node, node.textContent);
  } catch {
    fetching = null; // the next formula tries again
  }
  waiting.clear();
}

function typeset(node, source) {
  const drawn = kept.get(source) ?? draw(source);
  if (drawn === null) return;
  if (kept.size >= KEPT_MAX) kept.clear();
  kept.set(source, drawn);
  node.replaceChildren(drawn.cloneNode(true));
}

function draw(source) {
  const ends = source.startsWith("$") && !source.startsWith("$$") ? 1 : 2;
  const place = document.createElement("span");
  try {
    katex.render(source.slice(ends, -ends), place, { ...OPTIONS, displayMode: isDisplayed(source) });
    return place.firstChild;
  } catch {
    return null;
  }
}
