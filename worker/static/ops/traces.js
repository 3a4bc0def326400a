// The list of answers; each leads to its trace.

import { el } from "../shared/dom.js";
import { count, duration, moment } from "../shared/format.js";

const COLUMNS = ["Time", "Status", "First token", "Total", "Tokens", "Cached", "Surface"];

/** `traces` as in /ops/api/traces. */
export function traceTable(traces) {
  return el(
    "table",
    { class: "numeric traces" },
    el("thead", {}, el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...traces.map(traceRow)),
  );
}

function traceRow(trace) {
  const link = el("a", { href: `#/trace/${encodeURIComponent(trace.id)}` }, moment(trace.started_at));
  const cells = [
    link, status(trace), duration(trace.ttft_ms), duration(trace.duration_ms),
    count(trace.output_tokens), count(trace.cached_tokens), trace.surface,
  ];
  return el("tr", { "data-trace": trace.id }, ...cells.map((cell) => el("td", {}, cell)));
}

export function status({ status: name, within_target: within }) {
  const shown = name === "completed" && within === false ? "late" : (name ?? "unknown");
  const title = shown === "late" ? "completed, but missed the target of its surface" : null;
  return el("span", { class: "status", "data-status": shown, title }, shown);
}
