// A drawn answer -> the text that somebody would type in its place: without marks, citations and buttons.

const SKIPPED = "button, .cite, figcaption";
const FORMULA = ".math";

/** `node` holds blocks. What is hidden is told as well. */
export function readable(node) {
  return [...node.children].map(block).filter((text) => text !== "").join("\n\n");
}

function block(node) {
  if (node.localName === "ul" || node.localName === "ol") return list(node);
  if (node.localName === "hr") return "";
  const rows = node.matches(".table, table") ? [...node.querySelectorAll("tr")] : [];
  if (rows.length > 0) return rows.map((row) => [...row.cells].map(words).join("\t")).join("\n");
  if (node.localName === "blockquote") return readable(node);
  if (node.localName === "figure") return node.querySelector("code").textContent;
  return words(node);
}

function list(node, indent = "") {
  const first = Number(node.getAttribute("start") ?? 1);
  return [...node.children].map((item, at) => entry(item, node.localName === "ol" ? `${first + at}. ` : "- ", indent)).join("\n");
}

function entry(item, mark, indent) {
  const inner = [...item.children].filter(({ localName }) => localName === "ul" || localName === "ol");
  const own = item.cloneNode(true);
  for (const { localName } of inner) own.querySelector(localName).remove();
  return [indent + mark + words(own), ...inner.map((each) => list(each, `${indent}  `))].join("\n");
}

function words(node) {
  const copy = node.cloneNode(true);
  for (const formula of copy.querySelectorAll(FORMULA)) formula.replaceWith(formula.querySelector("annotation")?.textContent ?? formula.textContent);
  for (const each of copy.querySelectorAll(SKIPPED)) each.remove();
  for (const line of copy.querySelectorAll("br")) line.replaceWith("\n");
  return copy.textContent.replaceAll("\u00a0", " ").replace(/ +([.,;:!?])/g, "$1").trim();
}
