// Which span got slower: one stretch or slice of answers beside another.

import { el } from "../shared/dom.js";
import { count, duration, signed } from "../shared/format.js";
import { kindOf } from "../shared/segments.js";
import { words } from "../shared/words.js";

const DAY_S = 86_400;
const SHIFTS = { day: DAY_S, week: 7 * DAY_S };
const TIMES = { ttft: "first token", tpot: "time per token", duration: "whole answer" };

/** What there is to compare with: [value, label]. `facets` as in /ops/api/summary; a slice is compared with another one. */
export function choices(state, facets) {
  const slices = ["surface", "model", "agent"].flatMap((name) =>
    facets[name].filter((value) => facets[name].length > 1 && value !== state[name]).map((value) => [`${name}:${value}`, `vs ${name} ${value}`]),
  );
  return [["", "Compare with…"], ["before", "vs the time before"], ["day", "vs a day earlier"], ["week", "vs a week earlier"], ...slices];
}

/** The query of /ops/api/comparison; `query` is that of the summary. */
export function comparisonQuery(query, against, now = Date.now() / 1000) {
  const asked = new URLSearchParams(query);
  const end = Number(asked.get("end") ?? Math.floor(now));
  const start = Number(asked.get("start") ?? end - Number(asked.get("window_s")));
  if (against in SHIFTS) {
    asked.set("against_start", String(start - SHIFTS[against]));
    asked.set("against_end", String(end - SHIFTS[against]));
  } else if (against !== "before") {
    const [name, ...value] = against.split(":");
    asked.set(`against_${name}`, value.join(":"));
  }
  return asked;
}

/** `rows` as in /ops/api/comparison. */
export function comparisonTable(rows) {
  const times = rows.filter(({ name }) => name in TIMES);
  const spans = rows.filter(({ name }) => !(name in TIMES));
  return [
    el("p", { class: "verdict", role: "status" }, verdict(spans, times)),
    el(
      "table",
      { class: "numeric comparison" },
      el("thead", {}, row("th", ["Median of", "Now", "Then", "Change, and 95 % confidence"])),
      el("tbody", {}, ...times.map(comparedRow)),
      el("tbody", {}, ...spans.map(comparedRow)),
    ),
  ];
}

/** The answer in a sentence: what got slower beyond chance, the most first. */
function verdict(spans, times) {
  const slower = spans.filter(({ p50 }) => p50.verdict === "slower").sort((a, b) => b.p50.change_ms - a.p50.change_ms);
  if (slower.length > 0) {
    const [first, ...more] = slower.slice(0, 3).map(({ name, p50 }) => `${words(name)} (${signed(p50.change_ms)})`);
    return `Slower: ${[first, ...more].join(", ")}.`;
  }
  const known = times.some(({ p50 }) => p50.verdict !== "unknown");
  return known ? "No span got slower by more than chance." : "Too few answers on one of the two sides to compare.";
}

function comparedRow({ name, turns, turns_then: then, p50 }) {
  const swatch = name in TIMES ? null : el("span", { class: "swatch", "data-span": kindOf(name) });
  const label = el("span", { class: "name" }, swatch, TIMES[name] ?? name);
  const change = el("span", { class: `change is-${p50.verdict}` }, p50.change_ms === null ? "–" : signed(p50.change_ms));
  const between = p50.low_ms === null ? null : el("small", {}, `${signed(p50.low_ms)} to ${signed(p50.high_ms)}`);
  const node = row("td", [label, duration(p50.ms), duration(p50.then_ms), el("span", { class: "changed" }, change, between)]);
  node.title = `${count(turns)} answers now, ${count(then)} then`;
  node.dataset.name = name;
  return node;
}

function row(tag, cells) {
  return el("tr", {}, ...cells.map((cell) => el(tag, tag === "th" ? { scope: "col" } : {}, cell)));
}
