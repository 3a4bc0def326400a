// One trace drawn over time: a row for each span, grouped by lane, with the gaps that no span covers.

import { el } from "../shared/dom.js";
import { duration } from "../shared/format.js";
import { endOf, kindOf, tile } from "../shared/segments.js";

const LANES = { main: "Main path", prefix: "Prefilled during retrieval", retrieval: "Retrieval", tools: "Tools" };
const TICKS = 5;
const GAP_MS_MIN = 0.5; // smaller ones count in the sum above the picture, but would only clutter it

/** `inspect(row)` is called with the selected row: {name, start_ms, duration_ms, lane, attributes}. */
export function waterfall(trace, inspect) {
  return el(
    "div",
    { class: "waterfall numeric" },
    axis(trace.duration_ms),
    ...lanes(trace).map(([name, rows]) =>
      el(
        "section",
        { class: "lane", "data-lane": name, "aria-label": `Lane ${name}` },
        el("h3", {}, LANES[name] ?? name),
        el("ul", {}, ...rows.map((row) => rowNode(row, trace, inspect))),
      ),
    ),
    firstToken(trace),
  );
}

/** [lane, rows by start]; the main lane first, with its gaps. */
function lanes(trace) {
  const groups = new Map([["main", []]]);
  trace.spans.forEach((span) => {
    if (!groups.has(span.lane)) groups.set(span.lane, []);
    groups.get(span.lane).push({ ...span, duration_ms: endOf(span, trace) - span.start_ms, depth: depth(span, trace) });
  });
  for (const gap of tile(trace).filter((piece) => piece.gap && piece.duration_ms >= GAP_MS_MIN)) {
    groups.get("main").push({ ...gap, lane: "main", depth: 0, attributes: {} });
  }
  return [...groups].map(([name, rows]) => [name, rows.sort((a, b) => a.start_ms - b.start_ms)]);
}

/** How many enclosing spans lie on the same lane. */
function depth(span, trace) {
  let levels = 0;
  for (let up = trace.spans[span.parent]; up !== undefined && levels < 8; up = trace.spans[up.parent]) {
    if (up.lane === span.lane) levels++;
  }
  return levels;
}

function rowNode(row, trace, inspect) {
  const label = el("span", { class: "row-name" }, row.gap ? "gap" : row.name);
  label.style.paddingLeft = `${row.depth}rem`;
  const look = () => inspect(row);
  return el(
    "li",
    {
      class: row.gap ? "row is-gap" : "row", tabindex: "0", "data-name": row.name, focus: look, mouseenter: look,
      "aria-label": `${row.name}, from ${duration(row.start_ms)}, ${duration(row.duration_ms)}`,
    },
    label,
    el("span", { class: "track" }, stretch(row, trace)),
    el("span", { class: "row-time" }, duration(row.duration_ms)),
  );
}

function stretch(row, trace) {
  const kind = row.gap ? null : kindOf(row.name);
  const node = el("span", { class: row.gap ? "stretch gap" : "stretch", "data-span": kind });
  place(node, row.start_ms, trace.duration_ms);
  node.style.width = `${percent(row.duration_ms, trace.duration_ms)}%`;
  return node;
}

function axis(totalMs) {
  const ticks = Array.from({ length: TICKS + 1 }, (_, i) => {
    const tick = el("span", {}, i === 0 ? "0" : duration((totalMs * i) / TICKS));
    place(tick, i, TICKS);
    return tick;
  });
  return el("div", { class: "axis", "aria-hidden": "true" }, el("span", { class: "track" }, ...ticks));
}

/** The line at the first token. */
function firstToken(trace) {
  if (trace.ttft_ms === null || trace.ttft_ms === undefined) return null;
  const line = el("span", { class: "first-token" }, el("span", {}, `first token ${duration(trace.ttft_ms)}`));
  place(line, trace.ttft_ms, trace.duration_ms);
  return el("div", { class: "marks", "aria-hidden": "true" }, el("span", { class: "track" }, line));
}

function place(node, at, whole) {
  node.style.left = `${percent(at, whole)}%`;
}

function percent(part, whole) {
  return whole > 0 ? Math.min(100, (100 * part) / whole) : 0;
}
