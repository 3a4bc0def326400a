// Which span got slower: one stretch or slice of answers beside another.

import { el } from "../shared/dom.js";
import { count, duration, signed, signedRange } from "../shared/format.js";
import { DIMENSIONS, NAMES, labelOf, valuesOf } from "./dimensions.js";
import { kindOf } from "../shared/segments.js";
import { words } from "../shared/words.js";

const DAY_S = 86_400;
const SHIFTS = { day: DAY_S, week: 7 * DAY_S };
const TIMES = { ttft: "first token", ttfa: "first token of the answer", tpot: "time per token", duration: "whole answer" };
const WINDOWS = { before: "The time before", day: "A day earlier", week: "A week earlier" };
const QUANTILES = { p50: "Median", p95: "95th percentile" };

/** What there is to compare with, in groups of [value, label]; `facets` and `keyNames` as in /ops/api/summary. */
export function choices(state, facets, keyNames) {
  const others = (name) => valuesOf(name, facets).filter((value) => value !== state[name]);
  const slices = NAMES.filter((name) => valuesOf(name, facets).length > 1).map((name) => ({
    label: DIMENSIONS[name].group,
    options: others(name).map((value) => [`${name}:${value}`, labelOf(name, value, keyNames)]),
  }));
  return [{ label: "Another time", options: Object.entries(WINDOWS) }, ...slices];
}

/** How the two sides are called: times by when they are, slices by what sets them apart. */
function sides(state, keyNames) {
  const { against } = state;
  if (against in WINDOWS) return ["Now", WINDOWS[against]];
  const [name, value] = parted(against);
  return [state[name] ? labelOf(name, state[name], keyNames) : DIMENSIONS[name].all, labelOf(name, value, keyNames)];
}

function parted(against) {
  const [name, ...value] = against.split(":");
  return [name, value.join(":")];
}

/** Whether an address names something to compare with. */
export function isComparison(against) {
  return against in WINDOWS || (NAMES.includes(parted(against)[0]) && parted(against)[1] !== "");
}

/** The query of /ops/api/comparison; `query` is that of the summary, `now` the worker's time in Unix seconds. */
export function comparisonQuery(query, against, now) {
  const asked = new URLSearchParams(query);
  const end = Number(asked.get("end") ?? Math.floor(now));
  const start = Number(asked.get("start") ?? end - Number(asked.get("window_s")));
  if (against in SHIFTS) {
    asked.set("against_start", String(start - SHIFTS[against]));
    asked.set("against_end", String(end - SHIFTS[against]));
  } else if (against !== "before") {
    const [name, value] = parted(against);
    asked.set(`against_${name}`, value);
  }
  return asked;
}

/** `rows` as in /ops/api/comparison; `state` has the slice, what it is compared with and by which quantile. */
export function comparisonTable(rows, state, keyNames) {
  const of = state.of in QUANTILES ? state.of : "p50";
  const times = rows.filter(({ name }) => name in TIMES);
  const spans = rows.filter(({ name }) => !(name in TIMES));
  return [
    el("p", { class: "verdict", role: "status" }, verdict(spans, times, of)),
    el(
      "table",
      { class: "numeric comparison" },
      el("thead", {}, row("th", [QUANTILES[of], ...sides(state, keyNames), "Difference, 95% confidence"])),
      el("tbody", {}, ...times.map((each) => comparedRow(each, of))),
      el("tbody", {}, ...spans.map((each) => comparedRow(each, of))),
    ),
  ];
}

/** The answer in a sentence: what is slower beyond chance, the most first. */
function verdict(spans, times, of) {
  const slower = spans.filter((each) => each[of].verdict === "slower").sort((a, b) => b[of].change_ms - a[of].change_ms);
  if (slower.length > 0) {
    const [first, ...more] = slower.slice(0, 3).map((each) => `${words(each.name)} (${signed(each[of].change_ms)})`);
    return `Slower: ${[first, ...more].join(", ")}.`;
  }
  const known = times.some((each) => each[of].verdict !== "unknown");
  return known ? "No span is slower by more than chance would explain." : "Too few answers on one of the two sides to compare.";
}

function comparedRow({ name, turns, turns_then: then, ...quantiles }, of) {
  const found = quantiles[of];
  const swatch = name in TIMES ? null : el("span", { class: "swatch", "data-span": kindOf(name) });
  const label = el("span", { class: "name" }, swatch, TIMES[name] ?? name);
  const change = el("span", { class: `change is-${found.verdict}` }, found.change_ms === null ? "–" : signed(found.change_ms));
  const between = found.low_ms === null ? null : el("small", {}, signedRange(found.low_ms, found.high_ms));
  const node = row("td", [label, duration(found.ms), duration(found.then_ms), el("span", { class: "changed" }, change, between)]);
  node.title = `${count(turns)} and ${count(then)} answers`;
  node.dataset.name = name;
  return node;
}

function row(tag, cells) {
  return el("tr", {}, ...cells.map((cell) => el(tag, tag === "th" ? { scope: "col" } : {}, cell)));
}
