// The list of answers: what was asked, where the time went, and what made it slow. Each leads to its trace.

import { bar } from "../shared/bar.js";
import { el } from "../shared/dom.js";
import { count, duration, moment } from "../shared/format.js";
import { tile } from "../shared/segments.js";
import { mainCause } from "./cause.js";

const US = 1000; // per millisecond

/** `turns` and `usual` as in /ops/api/traces. */
export function traceList(turns, usual) {
  const longest = Math.max(1, ...turns.map((turn) => turn.duration_ms));
  return el("ol", { class: "traces numeric" }, ...turns.map((turn) => row(turn, usual[turn.surface] ?? {}, longest)));
}

function row(turn, usual, longest) {
  const drawn = { ...turn, spans: (turn.stages ?? []).map(span) };
  const cause = mainCause(drawn, usual);
  return el(
    "li",
    { "data-trace": turn.id },
    el("a", { class: "trace-when", href: `#/trace/${encodeURIComponent(turn.id)}` }, moment(turn.started_at)),
    el("span", { class: "trace-what" }, turn.question ?? el("span", { class: "quiet" }, unnamed(turn))),
    status(turn),
    timeline(drawn, longest),
    el("span", { class: cause?.unusual ? "trace-cause is-unusual" : "trace-cause" }, cause?.text ?? ""),
    number("first token", duration(turn.ttft_ms), turn.within_target === false),
    number("total", duration(turn.duration_ms)),
    number("tokens", count(turn.output_tokens)),
  );
}

/** The bar is as long as the answer took, in proportion to the longest of the list. */
function timeline(drawn, longest) {
  const whole = bar(tile(drawn), drawn.duration_ms);
  whole.style.maxWidth = `${Math.max(2, (100 * drawn.duration_ms) / longest)}%`;
  return el("span", { class: "trace-bar" }, whole);
}

function unnamed({ agent, surface, model, response_id: response }) {
  const kind = response === null ? surface : `${surface} answer`;
  return [kind, agent || model].filter(Boolean).join(" · ");
}

function number(name, value, alarming = false) {
  return el("span", { class: alarming ? "trace-number alarming" : "trace-number" }, el("small", {}, name), value);
}

function span([name, startUs, durationUs, lane]) {
  return { name, lane, parent: null, start_ms: startUs / US, duration_ms: durationUs / US, attributes: {} };
}

export function status({ status: name, within_target: within }) {
  const shown = name === "completed" && within === false ? "late" : (name ?? "unknown");
  const title = shown === "late" ? "completed, but missed the target of its surface" : null;
  return el("span", { class: "status", "data-status": shown, title }, shown);
}
