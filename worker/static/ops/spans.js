// Percentiles per span: a table whose pictures share one scale.

import { el } from "../shared/dom.js";
import { count, duration } from "../shared/format.js";
import { kindOf } from "../shared/segments.js";

const SMALLEST_MS = 0.05; // the left end of the scale: what is faster needs no picture

/** `spans` as in /ops/api/summary, in the order in which they happen. */
export function spanTable(spans) {
  const longest = Math.max(2 * SMALLEST_MS, ...spans.map((span) => span.p99 ?? 0));
  return el(
    "table",
    { class: "numeric spans" },
    el("thead", {}, row("th", ["Span", "Answers", "p50", "p95", "p99", "log scale"])),
    el("tbody", {}, ...spans.map((span) => spanRow(span, longest))),
  );
}

function spanRow(span, longest) {
  const swatch = el("span", { class: "swatch", "data-span": kindOf(span.name) });
  const name = el("span", { class: "name" }, swatch, span.name);
  const times = [span.p50, span.p95, span.p99].map(duration);
  return row("td", [name, count(span.turns), ...times, range(span, longest)]);
}

/** A mark at p50, a body from there to p95, a tail to p99. */
function range({ name, p50, p95, p99 }, longest) {
  const [median, high, highest] = [p50, p95, p99].map((ms) => position(ms, longest));
  return el(
    "span",
    { class: "range", "data-span": kindOf(name), "aria-hidden": "true" },
    stretch("tail", high, highest),
    stretch("body", median, high),
    stretch("p50", median, null),
  );
}

function stretch(name, from, to) {
  const node = el("span", { class: name });
  node.style.left = `${from}%`;
  if (to !== null) node.style.width = `${to - from}%`;
  return node;
}

function position(ms, longest) {
  const share = Math.log(Math.max(ms ?? 0, SMALLEST_MS) / SMALLEST_MS) / Math.log(longest / SMALLEST_MS);
  return 100 * share;
}

function row(tag, cells) {
  return el("tr", {}, ...cells.map((cell) => el(tag, tag === "th" ? { scope: "col" } : {}, cell)));
}
