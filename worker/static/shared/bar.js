// The stacked bar of a trace: one coloured piece for each stretch of time.

import { el } from "./dom.js";
import { duration } from "./format.js";
import { kindOf } from "./segments.js";

export function bar(pieces, totalMs) {
  const label = `Timeline of ${duration(totalMs)}`;
  return el("span", { class: "bar", role: "img", "aria-label": label }, ...pieces.map(piece));
}

function piece({ name, duration_ms, gap }) {
  const node = el("span", {
    class: gap ? "gap" : null,
    "data-span": gap ? null : kindOf(name),
    title: `${name} ${duration(duration_ms)}`,
  });
  node.style.flexGrow = String(duration_ms);
  return node;
}
