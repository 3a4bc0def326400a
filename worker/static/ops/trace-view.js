// One trace: its numbers, its bar, its waterfall, and the attributes of the selected span.

import { lanes } from "../shared/bar.js";
import { el } from "../shared/dom.js";
import { count, duration, moment, pace } from "../shared/format.js";
import { attributeSum, promptTokens, tile as tilePieces } from "../shared/segments.js";
import { tile } from "./tiles.js";
import { status } from "./traces.js";
import { waterfall } from "./waterfall.js";

/** `trace` as in /ops/api/traces/{id}. */
export function traceView(trace) {
  const panel = el("aside", { class: "card inspector", "aria-label": "Span", "aria-live": "polite" });
  const inspect = (row) => panel.replaceChildren(...inspected(row));
  const pieces = tilePieces(trace);
  inspect({ name: "The whole answer", start_ms: 0, duration_ms: trace.duration_ms, attributes: turnAttributes(trace) });
  return [
    el("p", { class: "back" }, el("a", { href: "#/" }, "All answers")),
    el("header", { class: "trace-head" }, el("h2", {}, trace.id), el("p", {}, ...facts(trace))),
    el("section", { class: "tiles", "aria-label": "Numbers of this answer" }, ...numbers(trace, pieces)),
    lanes(trace),
    el("div", { class: "trace-columns" }, el("section", { class: "card" }, waterfall(trace, inspect)), panel),
  ];
}

function facts(trace) {
  const parts = [status(trace), moment(trace.started_at), trace.surface, trace.model];
  const conversation = trace.conversation_id;
  const link = conversation && el("a", { href: `/#/c/${encodeURIComponent(conversation)}` }, "Conversation");
  return [...parts, link].filter(Boolean).map((part) => el("span", {}, part));
}

function numbers(trace, pieces) {
  const { cached, fresh } = promptTokens(trace);
  const gaps = pieces.filter(({ gap }) => gap).reduce((sum, { duration_ms }) => sum + duration_ms, 0);
  const beforeToken = trace.ttft_ms === null ? "no token was generated" : "from arrival to the first byte of text";
  const written = `${count(attributeSum(trace, "decode", "tokens"))} tokens`;
  const covered = gaps > 0 ? `${duration(gaps)} outside any span` : "fully covered by spans";
  return [
    tile("First token", duration(trace.ttft_ms), beforeToken),
    tile("Time per token", duration(trace.tpot_ms), written, false, pace(trace.tpot_ms)),
    tile("Whole answer", duration(trace.duration_ms), covered),
    tile("Prompt", count(cached + fresh), `${count(cached)} tokens cached, ${count(fresh)} new`),
  ];
}

function turnAttributes(trace) {
  return { response: trace.response_id, ...trace.attributes };
}

function inspected({ name, start_ms, duration_ms, lane, attributes }) {
  const rows = [
    ["from", duration(start_ms)],
    ["to", duration(start_ms + duration_ms)],
    ["took", duration(duration_ms)],
    ...(lane ? [["lane", lane]] : []),
    ...Object.entries(attributes ?? {}).filter(([, value]) => value !== null && value !== undefined),
  ];
  return [
    el("h3", {}, name),
    el("dl", { class: "numeric" }, ...rows.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, shown(value))])),
  ];
}

function shown(value) {
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toFixed(3))) : String(value);
}
