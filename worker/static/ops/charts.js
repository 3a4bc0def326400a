// Which charts there are: their lines out of the columns of /ops/api/series, and how their values are told.

import { count, duration } from "../shared/format.js";

const percent = (value) => (value === null ? "–" : `${Math.round(100 * value)}%`);
const times = (value) => (value === null ? "–" : `${Number(value.toPrecision(2))}×`);
const ratio = (series, part, whole) => series[whole].map((all, i) => (all > 0 ? series[part][i] / all : null));
const MISSES = {
  edited: "edited", evicted: "evicted", retokenised: "other tokens", first_use: "first use", no_checkpoint: "no checkpoint",
};
const STYLES = ["p50", "p95", "p99", "failed", "fourth"];

/** Late answers of those that the objective allows: 1 spends its budget exactly. */
const burnt = ({ judged, within_target: within, objective }) =>
  judged.map((all, i) => (all > 0 ? (1 - within[i] / all) / (1 - objective) : null));
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
  "first-answer": {
    title: "First token of the answer", tell: duration, lines: percentiles("ttfa_ms"), targets: targets("ttfa_ms"),
  },
  pace: { title: "Time per token", tell: duration, lines: percentiles("tpot_ms"), targets: targets("tpot_ms") },
  whole: { title: "Whole answer", tell: duration, lines: percentiles("duration_ms") },
  goodput: {
    title: "Goodput", tell: percent, most: 1, targets: (_, { objective }) => [{ value: objective, names: "" }],
    lines: (series) => [{ label: "on time", style: "p50", values: ratio(series, "within_target", "judged") }],
  },
  burn: {
    title: "Burn rate", tell: times, targets: () => [{ value: 1, names: "at most " }],
    lines: (series) => [{ label: "late answers, of those allowed", style: "p50", values: burnt(series) }],
  },
  requests: {
    title: "Requests", tell: count, bars: true,
    lines: (series) => [
      { label: "answers", style: "bar", values: series.requests },
      { label: "failed", style: "failed", values: series.failed },
    ],
  },
  load: {
    title: "Running and waiting", tell: count, operators: true,
    lines: (series) => [
      { label: "running", style: "p50", values: series.running },
      { label: "waiting", style: "p99", values: series.waiting },
    ],
  },
  cache: {
    title: "Cached prompt", tell: percent, most: 1,
    lines: (series) => [{ label: "cached", style: "p50", values: ratio(series, "cached_tokens", "prompt_tokens") }],
  },
  misses: {
    title: "Cache misses", tell: count,
    lines: ({ misses }) => Object.entries(MISSES).map(([cause, label], i) => ({ label, style: STYLES[i], values: misses[cause] })),
    isEmpty: ({ misses }) => Object.values(misses).flat().every((each) => each === 0),
  },
  drafts: {
    title: "Drafts", tell: percent, most: 1,
    lines: (series) => [{ label: "accepted, of the tokens drafted", style: "p50", values: ratio(series, "accepted", "drafted") }],
    isEmpty: ({ drafted }) => drafted.every((each) => each === 0),
  },
  kv: {
    title: "KV cache", tell: percent, most: 1, operators: true,
    lines: (series) => [{ label: "in use at most", style: "p50", values: series.kv_use }],
  },
  lag: {
    title: "Event loop lag", tell: duration, operators: true,
    lines: (series) => [{ label: "highest", style: "p50", values: series.loop_lag_ms }],
  },
};

/** The charts that have something to show: what workers do is told to operators alone. */
export function offered(series) {
  const told = (values) => values.some((value) => value !== null);
  const shows = (chart) => !chart.isEmpty?.(series) && (!chart.operators || chart.lines(series).some((l) => told(l.values)));
  return Object.entries(CHARTS).filter(([, chart]) => shows(chart));
}
