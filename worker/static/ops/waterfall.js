// One trace drawn over time: the whole, then a row for each span, grouped by lane, all on one scale.

import { el } from "../shared/dom.js";
import { duration } from "../shared/format.js";
import { endOf, kindOf, tile } from "../shared/segments.js";
import { unusualOf } from "../shared/cause.js";
import { criticalPath } from "./critical.js";
import { engineLane } from "./engine-lane.js";

const LANES = { main: "Main path", prefix: "Prefilled during retrieval", retrieval: "Retrieval", tools: "Tools" };
const TICKS = 5; // about so many
const GAP_MS_MIN = 0.5; // smaller ones count in the sum above the picture, but would only clutter it
const TOGETHER = "edge"; // the parts of receiving a request: their bytes come in between of other work

/** `look(row)` is called for the row under the pointer, null for none; `pin(row)` for one that is chosen. A row is
 *  {name, start_ms, duration_ms, lane, attributes, stretches}. */
export function waterfall(trace, look, pin) {
  const step = tickMs(trace.duration_ms);
  const unusually = new Map(unusualOf(trace).map((each) => [each.name, each]));
  const picture = el(
    "div",
    { class: "waterfall numeric", mouseleave: () => look(null) },
    axis(trace.duration_ms, step),
    whole(trace),
    ...lanes(trace).map(([name, rows]) =>
      el(
        "section",
        { class: "lane", "data-lane": name, "aria-label": `Lane ${name}` },
        el("h3", {}, LANES[name] ?? name),
        el("ul", {}, ...rows.map((row) => rowNode({ ...row, unusual: unusually.get(row.name) }, trace, look, pin))),
      ),
    ),
    engineLane(trace, (node, from, to) => span(node, from, to, trace.duration_ms)) ?? "",
    firstToken(trace),
  );
  picture.style.setProperty("--tick", `${percent(step, trace.duration_ms)}%`);
  return picture;
}

/** [lane, rows by start]; the main lane first, with its gaps. */
function lanes(trace) {
  const critical = criticalPath(trace);
  const groups = new Map([["main", []]]);
  trace.spans.forEach((span, index) => {
    const stretch = { start_ms: span.start_ms, duration_ms: endOf(span, trace) - span.start_ms };
    const row = { ...span, ...stretch, stretches: [stretch], depth: depth(span, trace), critical: critical.has(index) };
    if (!groups.has(span.lane)) groups.set(span.lane, []);
    const rows = groups.get(span.lane);
    const same = span.name === TOGETHER && rows.find(({ name }) => name === TOGETHER);
    if (same) join(same, row);
    else rows.push(row);
  });
  for (const gap of tile(trace).filter((piece) => piece.gap && piece.duration_ms >= GAP_MS_MIN)) {
    groups.get("main").push({ ...gap, lane: "main", depth: 0, attributes: {}, stretches: [gap] });
  }
  return [...groups].map(([name, rows]) => [name, rows.sort((a, b) => a.start_ms - b.start_ms)]);
}

function join(row, more) {
  row.stretches.push(...more.stretches);
  row.duration_ms += more.duration_ms;
  row.critical ||= more.critical;
  row.attributes = { ...row.attributes, ...more.attributes };
}

/** How many enclosing spans lie on the same lane. */
function depth(span, trace) {
  let levels = 0;
  for (let up = trace.spans[span.parent]; up !== undefined && levels < 8; up = trace.spans[up.parent]) {
    if (up.lane === span.lane) levels++;
  }
  return levels;
}

/** The bar of the answer: the same pieces as in the list, on the scale of the rows below. */
function whole(trace) {
  const pieces = tile(trace).map((piece) => stretchNode(piece, piece, trace, piece.gap));
  return el(
    "div",
    { class: "row is-whole", role: "img", "aria-label": `Timeline of ${duration(trace.duration_ms)}` },
    el("span", { class: "row-name" }, "Whole answer"),
    el("span", { class: "track" }, ...pieces),
    el("span", { class: "row-time" }, duration(trace.duration_ms)),
  );
}

function rowNode(row, trace, look, pin) {
  const label = el("span", { class: "row-name" }, row.gap ? "gap" : row.name, note(row));
  label.style.paddingLeft = `${row.depth}rem`;
  const failed = isFailed(row);
  const classes = ["row", row.gap && "is-gap", row.critical && "is-critical", (failed || row.unusual) && "is-failed"];
  const chosen = (event) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    for (const other of event.currentTarget.closest(".waterfall").querySelectorAll("[aria-pressed=true]")) {
      other.setAttribute("aria-pressed", "false");
    }
    event.currentTarget.setAttribute("aria-pressed", "true");
    pin(row);
  };
  return el(
    "li",
    {},
    el(
      "div",
      {
        class: classes.filter(Boolean).join(" "), role: "button", tabindex: "0", "data-name": row.name,
        "aria-pressed": "false", mouseenter: () => look(row), focus: () => look(row), click: chosen, keydown: chosen,
        "aria-label": `${row.name}, from ${duration(row.start_ms)}, ${duration(row.duration_ms)}${failed ? ", failed" : ""}`,
      },
      label,
      el("span", { class: "track" }, ...row.stretches.map((stretch) => stretchNode(row, stretch, trace, row.gap))),
      el("span", { class: "row-time" }, duration(row.duration_ms)),
    ),
  );
}

/** What the engine counted, beside the name. */
function note({ name, attributes, unusual }) {
  const { new_tokens: fresh, cached_tokens: cached, tokens, drafted, accepted } = attributes;
  const parts = [
    unusual && `usually ${duration(unusual.usual_ms)}`,
    fresh !== undefined && `${fresh} new`,
    cached !== undefined && fresh !== undefined && `${cached} cached`,
    name === "decode" && tokens !== undefined && `${tokens} tokens`,
    drafted > 0 && `${accepted} of ${drafted} drafted`,
  ].filter(Boolean);
  return parts.length > 0 && el("small", {}, parts.join(" · "));
}

export function isFailed({ attributes }) {
  return attributes.failed === true || attributes["error.type"] !== undefined;
}

function stretchNode({ name }, { start_ms, duration_ms }, trace, gap = false) {
  const title = `${name} ${duration(duration_ms)}`;
  const node = el("span", { class: gap ? "stretch gap" : "stretch", "data-span": gap ? null : kindOf(name), title });
  span(node, start_ms, start_ms + duration_ms, trace.duration_ms);
  return node;
}

/** The round number of milliseconds between two ticks. */
function tickMs(totalMs) {
  const rough = Math.max(totalMs, 0.001) / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((times) => times * power >= rough);
}

function axis(totalMs, step) {
  const ticks = Array.from({ length: Math.floor(totalMs / step) + 1 }, (_, i) => {
    const tick = el("span", {}, i === 0 ? "0" : round(step * i));
    place(tick, step * i, totalMs);
    tick.classList.toggle("is-last", step * i > 0.94 * totalMs);
    return tick;
  });
  return el("div", { class: "axis", "aria-hidden": "true" }, el("span", { class: "track" }, ...ticks));
}

function round(ms) {
  return ms >= 1000 ? `${Number((ms / 1000).toPrecision(3))} s` : `${Number(ms.toPrecision(3))} ms`;
}

/** The line at the first token. */
function firstToken(trace) {
  if (trace.ttft_ms === null || trace.ttft_ms === undefined) return null;
  const line = el("span", { class: "first-token" }, el("span", {}, `first token ${duration(trace.ttft_ms)}`));
  line.classList.toggle("is-right", trace.ttft_ms > 0.7 * trace.duration_ms);
  place(line, trace.ttft_ms, trace.duration_ms);
  return el("div", { class: "marks", "aria-hidden": "true" }, el("span", { class: "track" }, line));
}

function span(node, from, to, whole) {
  place(node, from, whole);
  node.style.width = `${percent(to - from, whole)}%`;
}

function place(node, at, whole) {
  node.style.left = `${percent(at, whole)}%`;
}

function percent(part, whole) {
  return whole > 0 ? Math.min(100, (100 * part) / whole) : 0;
}
