// Markdown -> its words alone, for where there is no room for more.

import { parseBlocks } from "./parser.js";
import { renderBlock } from "./render.js";

export function plain(text) {
  return parseBlocks(text.replaceAll("\r", ""), { open: false }).map(words).join(" ");
}

function words(block) {
  const node = renderBlock(block, { cite: () => null, drawFormula: (source) => source });
  for (const caption of node.querySelectorAll?.("figcaption") ?? []) caption.remove(); // of code: language and button
  for (const line of node.querySelectorAll?.("br") ?? []) line.replaceWith(" ");
  for (const cell of node.querySelectorAll?.("th, td") ?? []) cell.prepend("|");
  return betweenCells(node.textContent.trim());
}

/** Also of rows that were cut off from the head of their table, and are a paragraph. */
function betweenCells(text) {
  if (!text.startsWith("|")) return text;
  return text.split("|").map((cell) => cell.trim()).filter(Boolean).join(" · ");
}
