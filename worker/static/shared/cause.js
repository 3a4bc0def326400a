// What made an answer slow: not its largest part, which is nearly always the writing, but what took longer than it
// usually does on this surface. Pure; milliseconds.

import { duration } from "./format.js";
import { attributeSum, totals } from "./segments.js";
import { sentence, words } from "./words.js";

const TIMES_MIN = 2; // as long as usual
const EXCESS_MS_MIN = 5;
const EXCESS_SHARE_MIN = 0.05; // of the whole answer: what is less explains nothing

/** [{name, ms, usual_ms}], what exceeds its median most first. `usual` as in /ops/api/traces. */
export function unusual(spans, totalMs, usual, tokens = null) {
  const least = Math.max(EXCESS_MS_MIN, EXCESS_SHARE_MIN * totalMs);
  return totals(spans)
    .map(({ name, duration_ms: ms }) => ({ name, ms, ...expected(name, usual, tokens) }))
    .filter(({ ms, usual_ms, most_ms }) => usual_ms !== null && ms - usual_ms >= least && ms > most_ms)
    .sort((a, b) => b.ms - b.usual_ms - (a.ms - a.usual_ms));
}

/** A longer answer takes longer to write: that is told by its tokens. */
function expected(name, usual, tokens) {
  const pace = usual?.tpot;
  if (name === "decode" && tokens > 1 && pace) {
    const usualMs = pace.p50_ms * (tokens - 1);
    return { usual_ms: usualMs, most_ms: Math.max(pace.p95_ms * (tokens - 1), TIMES_MIN * usualMs) };
  }
  const known = usual?.[name];
  if (!known) return { usual_ms: null, most_ms: null };
  return { usual_ms: known.p50_ms, most_ms: Math.max(known.p95_ms, TIMES_MIN * known.p50_ms) };
}

/** Of a row of the list: {text, name, unusual}. */
export function mainCause(row, usual) {
  const pieces = row.spans.filter(({ lane }) => lane === "main");
  const [first] = unusual(pieces, row.duration_ms, usual, row.output_tokens);
  if (first) return { name: first.name, unusual: true, text: `${words(first.name)}: ${compared(first)}` };
  const [largest] = totals(pieces).sort((a, b) => b.duration_ms - a.duration_ms);
  return largest ? { name: largest.name, unusual: false, text: `mostly ${words(largest.name)}` } : null;
}

/** The parts of a trace, its tools among them, that took unusually long. */
export function unusualOf(trace) {
  const stands = ({ name, parent }) => name.startsWith("tool:") || (parent === null && name !== "tools");
  const tokens = attributeSum(trace, "decode", "tokens");
  return unusual(trace.spans.filter(stands), trace.duration_ms, trace.usual, tokens);
}

/** Of a trace: sentences, the most important first. */
export function explained(trace) {
  const { usual } = trace;
  if (!usual || Object.keys(usual).length === 0) return ["Too few answers in the last day to tell what is usual here."];
  const found = unusualOf(trace);
  if (found.length === 0) return ["Nothing unusual: no part took much longer than it usually does on this surface."];
  return found.slice(0, 3).map((each) => `${sentence(words(each.name))} took ${compared(each)}${why(each, trace)}.`);
}

function compared({ ms, usual_ms }) {
  return `${duration(ms)}, usually ${duration(usual_ms)}`;
}

/** What the span's own attributes say about it. */
function why({ name }, trace) {
  const spans = trace.spans.filter((span) => span.name === name);
  const span = spans.sort((a, b) => b.duration_ms - a.duration_ms)[0];
  const { new_tokens: fresh, cached_tokens: cached, "cache.cause": cause } = span.attributes;
  if (name !== "prefill" || fresh === undefined) return "";
  return `: ${fresh} of ${fresh + cached} tokens were not cached${cause ? ` (${cause})` : ""}`;
}
