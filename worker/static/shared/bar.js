// The stacked bar of a trace: one coloured piece for each stretch of time, and below it what was prefilled during retrieval.

import { el } from "./dom.js";
import { duration } from "./format.js";
import { kindOf, tile, tileAhead } from "./segments.js";

export function lanes(trace) {
  const ahead = tileAhead(trace);
  const main = bar(tile(trace), trace.duration_ms);
  if (ahead.length === 0) return main;
  const beside = bar(ahead, trace.duration_ms);
  beside.setAttribute("aria-label", "Prefilled during retrieval");
  return el("span", { class: "lanes" }, main, beside);
}

export function bar(pieces, totalMs) {
  const label = `Timeline of ${duration(totalMs)}`;
  return el("span", { class: "bar", role: "img", "aria-label": label }, ...pieces.map(piece));
}

function piece({ name, duration_ms, gap }) {
  const node = el("span", {
    class: gap ? "gap" : null,
    "data-span": gap || name === "" ? null : kindOf(name),
    title: name === "" ? null : `${name} ${duration(duration_ms)}`,
  });
  node.style.flexGrow = String(duration_ms);
  return node;
}
