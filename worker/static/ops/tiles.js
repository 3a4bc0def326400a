// The window in a few numbers.

import { el } from "../shared/dom.js";
import { count, duration, pace, share } from "../shared/format.js";

const GOODPUT_MIN = 0.95; // targets are meant for the 95th percentile

/** `summary` is the answer of /ops/api/summary. */
export function tiles(summary) {
  const { ttft_ms: ttft, tpot_ms: tpot, duration_ms: total, requests, judged, within_target: within } = summary;
  const inTime = judged > 0 ? `${count(within)} of ${count(judged)} answers on time` : "no answers with a target";
  return [
    tile("Goodput", share(within, judged), inTime, within < GOODPUT_MIN * judged),
    tile("Requests", count(requests), unanswered(summary), summary.failed + summary.refused > 0),
    tile("First token", duration(ttft.p50), tails(ttft)),
    tile("Time per token", duration(tpot.p50), tails(tpot), false, pace(tpot.p50)),
    tile("Whole answer", duration(total.p50), tails(total)),
  ];
}

/** What became of those that were not answered; an invalid request is its sender's mistake, and alarms nobody. */
function unanswered(summary) {
  const parts = ["failed", "refused", "invalid"].filter((name) => summary[name] > 0);
  return parts.length > 0 ? parts.map((name) => `${count(summary[name])} ${name}`).join(", ") : "none failed";
}

export function tile(name, value, detail, alarming = false, beside = null) {
  return el(
    "div",
    { class: "tile" },
    el("h2", {}, name),
    el("p", { class: "tile-value numeric" }, value, beside && el("small", {}, beside)),
    el("p", { class: alarming ? "tile-detail numeric alarming" : "tile-detail numeric" }, ...[detail].flat()),
  );
}

function tails({ p95, p99 }) {
  return [["p95", p95], ["p99", p99]].map(([name, ms]) => el("span", {}, `${name} ${duration(ms)}`));
}
