// A trace -> the pieces of wall clock it is made of, pure. Times in milliseconds from the start of the trace.

const GAP_MS_MIN = 0.05; // stamps are taken one after another; less than this is the clock, not a gap

const RETRIEVAL = new Set(["open", "embed", "search", "fuse", "rerank", "read", "reread", "compress"]);
const FIRST_CALL = "first_call"; // a first token of a call, which is written up to its arguments before anything is sent
const AHEAD = "prefill_prefix"; // the part of the prompt that was prefilled while retrieval ran
const KINDS = new Set([
  "edge", "auth", "hydrate", "retrieve", "assemble", "tokenize", "connect", "queue", "prefill", "first_token", "decode",
  "flush",
]);

/** The colour group of a span: its name, one group for all tools, one for all stages of retrieval, "other" for what
 *  we do not know. */
export function kindOf(name) {
  if (name === "tools" || name.startsWith("tool:")) return "tool";
  if (RETRIEVAL.has(name)) return "retrieve";
  if (name === AHEAD) return "prefill";
  if (name === FIRST_CALL) return "first_token";
  return KINDS.has(name) ? name : "other";
}

/** Non-overlapping {name, start_ms, duration_ms, gap} that cover the trace from 0 to its end. The main lane comes
 *  first; time that it leaves free is given to the other lanes, and what nothing covers is a gap. The lane `answer` is
 *  no work: it lasts from the request to the first text, and would cover every gap before that. */
export function tile(trace) {
  const main = topSpans(trace).filter((span) => span.lane === "main");
  const beside = topSpans(trace).filter((span) => span.lane !== "main" && span.lane !== "answer");
  return cover(main, 0, trace.duration_ms, (from, to) =>
    cover(beside, from, to, (a, b) => [{ name: "gap", start_ms: a, duration_ms: b - a, gap: true }]),
  );
}

/** As `tile`, for the prefill ahead of the question alone, padded with blanks; empty without any. */
export function tileAhead(trace) {
  const spans = topSpans(trace).filter((span) => span.name === AHEAD);
  const blank = (from, to) => [{ name: "", start_ms: from, duration_ms: to - from, gap: false }];
  return spans.length === 0 ? [] : cover(spans, 0, trace.duration_ms, blank);
}

/** {cached, fresh}: prompt tokens that were there before the turn, and those that it had to read. */
export function promptTokens(trace) {
  const ahead = attributeSum(trace, AHEAD, "new_tokens");
  const cached = attributeSum(trace, "prefill", "cached_tokens") - ahead;
  return { cached, fresh: attributeSum(trace, "prefill", "new_tokens") + ahead };
}

function topSpans(trace) {
  return trace.spans
    .filter((span) => span.parent === null || span.parent === undefined)
    .map((span) => ({ ...span, name: span.attributes?.of === "call" ? FIRST_CALL : span.name, end_ms: endOf(span, trace) }));
}

/** A span without a duration was still open when the trace was sent: it lasts until the end. */
export function endOf(span, trace) {
  return span.duration_ms === null ? trace.duration_ms : span.start_ms + span.duration_ms;
}

function cover(spans, from, to, fill) {
  const pieces = [];
  let at = from;
  const free = (until) => {
    if (until - at > GAP_MS_MIN) pieces.push(...fill(at, until));
  };
  for (const span of [...spans].sort((a, b) => a.start_ms - b.start_ms)) {
    const start = Math.max(span.start_ms, at);
    const end = Math.min(span.end_ms, to);
    if (end <= start) continue;
    free(start);
    pieces.push({ name: span.name, start_ms: start, duration_ms: end - start, gap: false });
    at = end;
  }
  free(to);
  return pieces;
}

/** Pieces summed by name, in the order in which the names first appear. */
export function totals(pieces) {
  const sums = new Map();
  for (const { name, duration_ms } of pieces) sums.set(name, (sums.get(name) ?? 0) + duration_ms);
  return [...sums].map(([name, duration_ms]) => ({ name, duration_ms }));
}

/** A numeric attribute summed over all spans of that name. */
export function attributeSum(trace, name, attribute) {
  return trace.spans
    .filter((span) => span.name === name)
    .reduce((sum, span) => sum + Number(span.attributes[attribute] ?? 0), 0);
}
