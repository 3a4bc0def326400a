// Goodput by surface: the share of answers on time, and how far the slowest are from their target.

import { el } from "../shared/dom.js";
import { count, duration, share } from "../shared/format.js";

const COLUMNS = ["Surface", "Requests", "On time", "First token p95", "Per token p95"];

/** `surfaces` as in /ops/api/summary. */
export function surfaceTable(surfaces) {
  return el(
    "table",
    { class: "numeric surfaces" },
    el("thead", {}, el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...surfaces.map(surfaceRow)),
  );
}

function surfaceRow({ surface, requests, judged, within_target: within, ttft_ms: ttft, ttfa_ms: ttfa, tpot_ms: tpot, target }) {
  const cells = [
    surface, count(requests), share(within, judged),
    [compared(ttft.p95, target?.ttft_ms), answered(ttfa.p95, target?.ttfa_ms)].flat(), compared(tpot.p95, target?.tpot_ms),
  ];
  return el("tr", {}, ...cells.map((cell) => el("td", {}, ...[cell].flat())));
}

/** The first token of the answer itself, where it has a target. */
function answered(ms, target) {
  if (typeof target !== "number") return [];
  return el("span", { class: ms > target ? "target alarming" : "target" }, `answer ${duration(ms)} of ${duration(target)}`);
}

/** What was measured, marked where it is beyond its target, and the target. */
function compared(ms, target) {
  if (target === null || target === undefined) return duration(ms);
  return [el("span", ms > target ? { class: "alarming" } : {}, duration(ms)), el("span", { class: "target" }, `of ${duration(target)}`)];
}
