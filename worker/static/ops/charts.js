// Which charts there are: their lines out of the columns of /ops/api/series, and how their values are told.

import { count, duration } from "../shared/format.js";

const percent = (value) => (value === null ? "–" : `${Math.round(100 * value)} %`);
const ratio = (series, part, whole) => series[whole].map((all, i) => (all > 0 ? series[part][i] / all : null));
const percentiles = (name) => (series) =>
  ["p50", "p95", "p99"].map((p) => ({ label: p, style: p, values: series[name][p] }));

/** One for each value: surfaces that share one share its line. `surfaces` as in /ops/api/summary. */
const targets = (name) => (surfaces) => {
  const found = new Map();
  for (const { surface, target } of surfaces.filter((each) => typeof each.target?.[name] === "number")) {
    found.set(target[name], [...(found.get(target[name]) ?? []), surface]);
  }
  return [...found].map(([value, names]) => ({ value, names: found.size > 1 ? `${names.join(", ")} ` : "" }));
};

export const CHARTS = {
  "first-token": {
    title: "First token", tell: duration, lines: percentiles("ttft_ms"),
    targets: targets("ttft_ms"), dots: (series) => series.late.filter((late) => late.ttft_ms !== null),
    dotValue: (late) => late.ttft_ms,
  },
  pace: { title: "Time per token", tell: duration, lines: percentiles("tpot_ms"), targets: targets("tpot_ms") },
  whole: { title: "Whole answer", tell: duration, lines: percentiles("duration_ms") },
  goodput: {
    title: "Goodput", tell: percent, most: 1, targets: () => [{ value: 0.95, names: "" }],
    lines: (series) => [{ label: "on time", style: "p50", values: ratio(series, "within_target", "judged") }],
  },
  requests: {
    title: "Requests", tell: count, bars: true,
    lines: (series) => [
      { label: "answers", style: "bar", values: series.requests },
      { label: "failed", style: "failed", values: series.failed },
    ],
  },
  load: {
    title: "Running, waiting", tell: count, operators: true,
    lines: (series) => [
      { label: "running", style: "p50", values: series.running },
      { label: "waiting", style: "p99", values: series.waiting },
    ],
  },
  cache: {
    title: "Cached prompt", tell: percent, most: 1,
    lines: (series) => [{ label: "cached", style: "p50", values: ratio(series, "cached_tokens", "prompt_tokens") }],
  },
  lag: {
    title: "Event loop lag", tell: duration, operators: true,
    lines: (series) => [{ label: "highest", style: "p50", values: series.loop_lag_ms }],
  },
};

/** The charts that have something to show: what workers do is told to operators alone. */
export function offered(series) {
  const told = (values) => values.some((value) => value !== null);
  return Object.entries(CHARTS).filter(([, chart]) => !chart.operators || chart.lines(series).some((l) => told(l.values)));
}
