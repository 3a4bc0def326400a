// Two traces beside each other, aligned at the arrival of their requests and on one scale.

import { lanes } from "../shared/bar.js";
import { el } from "../shared/dom.js";
import { duration, moment, signed } from "../shared/format.js";
import { kindOf, tile, totals } from "../shared/segments.js";
import { status } from "./traces.js";

/** `first` and `second` as in /ops/api/traces/{id}. */
export function pairView(first, second) {
  const longest = Math.max(first.duration_ms, second.duration_ms, 0.001);
  return [
    el(
      "nav",
      { class: "trace-nav", "aria-label": "Answers" },
      el("a", { class: "back", href: "#/" }, "All answers"),
      el("span", { class: "spring" }),
      el("a", { class: "button", href: `#/compare/${encodeURIComponent(second.id)}/${encodeURIComponent(first.id)}` }, "Swap"),
    ),
    el("header", { class: "trace-head" }, el("h2", {}, headline(first, second))),
    el("section", { class: "card pair", "aria-label": "Timelines" }, timeline("A", first, longest), timeline("B", second, longest)),
    el("section", { class: "card scroll", "aria-label": "By span", tabindex: "0" }, table(first, second)),
  ];
}

function headline(first, second) {
  const change = second.duration_ms - first.duration_ms;
  const [most] = differences(first, second).sort((a, b) => b.change * Math.sign(change) - a.change * Math.sign(change));
  if (!most || Math.abs(change) < 0.01) return "Both answers took the same time.";
  return `B took ${duration(Math.abs(change))} ${change > 0 ? "longer" : "less"}, mostly in ${most.name}.`;
}

function timeline(letter, trace, longest) {
  const drawn = el("span", { class: "pair-bar" }, lanes(trace));
  drawn.style.width = `${(100 * trace.duration_ms) / longest}%`;
  const mark = trace.ttft_ms === null ? null : el("span", { class: "pair-first", title: `first token ${duration(trace.ttft_ms)}` });
  if (mark) mark.style.left = `${(100 * trace.ttft_ms) / longest}%`;
  return el(
    "div",
    { class: "pair-row" },
    el("b", {}, letter),
    el(
      "span",
      { class: "pair-facts" },
      el("a", { href: `#/trace/${encodeURIComponent(trace.id)}` }, trace.question ?? moment(trace.started_at)),
      status(trace),
      el("span", { class: "quiet numeric" }, `first token ${duration(trace.ttft_ms)}, total ${duration(trace.duration_ms)}`),
    ),
    el("span", { class: "pair-track" }, drawn, mark),
  );
}

/** The pieces of wall clock by name, in the order in which they first happen: they add up to the whole. */
function differences(first, second) {
  const [one, other] = [first, second].map((trace) => new Map(totals(tile(trace)).map((piece) => [piece.name, piece.duration_ms])));
  return [...new Set([...one.keys(), ...other.keys()])].map((name) => {
    const [a, b] = [one.get(name) ?? null, other.get(name) ?? null];
    return { name, a, b, change: (b ?? 0) - (a ?? 0) };
  });
}

function table(first, second) {
  const rows = differences(first, second);
  const most = Math.max(0.001, ...rows.map(({ change }) => Math.abs(change)));
  const head = ["Span", "A", "B", "Difference"].map((name) => el("th", { scope: "col" }, name));
  const total = { name: "whole answer", a: first.duration_ms, b: second.duration_ms, change: second.duration_ms - first.duration_ms };
  return el(
    "table",
    { class: "numeric pair-table" },
    el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...rows.map((each) => row(each, most))),
    el("tfoot", {}, row(total, Infinity)),
  );
}

function row({ name, a, b, change }, most) {
  const swatch = most === Infinity ? null : el("span", { class: "swatch", "data-span": kindOf(name) });
  const meter = el("span", { class: `meter ${change > 0 ? "is-slower" : "is-faster"}` });
  meter.style.width = `${(50 * Math.abs(change)) / most}%`;
  const told = el("span", { class: "meter-value" }, signed(change));
  return el(
    "tr",
    { "data-name": name },
    el("td", {}, el("span", { class: "name" }, swatch, name)),
    el("td", {}, duration(a)),
    el("td", {}, duration(b)),
    el("td", {}, told, most === Infinity ? null : el("span", { class: "meters", "aria-hidden": "true" }, meter)),
  );
}
