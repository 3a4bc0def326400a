// Percentiles per span: a table whose bars share one scale.

import { el } from "../shared/dom.js";
import { count, duration } from "../shared/format.js";
import { kindOf } from "../shared/segments.js";

/** `spans` as in /ops/api/summary, in the order in which they happen. */
export function spanTable(spans) {
  const longest = Math.max(...spans.map((span) => span.p99 ?? 0));
  return el(
    "table",
    { class: "numeric" },
    el("thead", {}, row("th", ["Span", "Answers", "p50", "p95", "p99", ""])),
    el("tbody", {}, ...spans.map((span) => spanRow(span, longest))),
  );
}

function spanRow(span, longest) {
  const name = el("span", { class: "name" }, el("span", { class: "swatch", "data-span": kindOf(span.name) }), span.name);
  const times = [span.p50, span.p95, span.p99].map(duration);
  return row("td", [name, count(span.turns), ...times, range(span, longest)]);
}

/** Up to p50 solid, to p95 lighter, to p99 lightest. */
function range(span, longest) {
  const track = el("span", { class: "range", "data-span": kindOf(span.name), "aria-hidden": "true" });
  for (const quantile of ["p99", "p95", "p50"]) {
    const part = el("span", { class: quantile });
    part.style.width = `${longest > 0 ? (100 * (span[quantile] ?? 0)) / longest : 0}%`;
    track.append(part);
  }
  return track;
}

function row(tag, cells) {
  return el("tr", {}, ...cells.map((cell) => el(tag, tag === "th" ? { scope: "col" } : {}, cell)));
}
