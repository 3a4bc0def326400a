// The critical path of a trace: the spans without which the answer would have ended earlier. Pure.

import { endOf } from "../shared/segments.js";

const TOUCH_MS = 0.01; // stamps of spans that follow each other

/** The indices of the spans on it. From the end backwards, what ended last is what was waited for. */
export function criticalPath(trace) {
  const spans = trace.spans.map((span, index) => ({ ...span, index, end_ms: endOf(span, trace) }));
  const found = new Set();
  const walk = (candidates, from, to) => {
    let at = to;
    while (at > from) {
      const last = candidates
        .filter((span) => !found.has(span.index) && span.start_ms < at && span.end_ms <= at + TOUCH_MS && span.end_ms > from)
        .sort((a, b) => b.end_ms - a.end_ms || a.start_ms - b.start_ms)[0];
      if (last === undefined) return;
      found.add(last.index);
      walk(spans.filter(({ parent }) => parent === last.index), last.start_ms, last.end_ms);
      at = Math.min(at, last.start_ms);
    }
  };
  walk(spans.filter(({ parent }) => parent === null || parent === undefined), 0, trace.duration_ms);
  return found;
}
