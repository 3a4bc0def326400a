// "Why was this slow?": the answer's own trace as a bar, and in words when opened.

import { lanes } from "../shared/bar.js";
import { el } from "../shared/dom.js";
import { count, duration, pace, share } from "../shared/format.js";
import { icon } from "../shared/icons.js";
import { attributeSum, kindOf, promptTokens, tile, totals } from "../shared/segments.js";

export function timing(trace) {
  const pieces = tile(trace);
  return el(
    "details",
    { class: "timing", "data-trace": trace.id },
    el(
      "summary",
      { title: "Show where the time went" },
      lanes(trace),
      el("span", { class: "timing-numbers numeric" }, ...numbers(trace)),
      icon("chevron"),
    ),
    el(
      "div",
      { class: "timing-body" },
      el("p", {}, explain(trace, pieces)),
      el("ul", { class: "legend numeric" }, ...totals(pieces).map((total) => legendRow(total, trace.duration_ms))),
      ...verdicts(trace).map((line) => el("p", {}, line)),
      el("p", { class: "timing-foot numeric" }, el("span", {}, cacheLine(trace)), traceLink(trace)),
    ),
  );
}

function numbers(trace) {
  const parts = [
    ["First token", duration(trace.ttft_ms)],
    ["", pace(trace.tpot_ms)],
    ["Total", duration(trace.duration_ms)],
  ];
  return parts
    .filter(([, value]) => value !== null)
    .map(([name, value]) => el("span", {}, name ? `${name} ` : "", el("b", {}, value)));
}

function legendRow({ name, duration_ms }, totalMs) {
  const gap = name === "gap";
  return el(
    "li",
    {},
    el("span", { class: gap ? "swatch gap" : "swatch", "data-span": gap ? null : kindOf(name) }),
    el("span", { class: "legend-name" }, gap ? "between spans" : name),
    el("span", {}, duration(duration_ms)),
    el("span", { class: "legend-share" }, share(duration_ms, totalMs)),
  );
}

function cacheLine(trace) {
  const { cached, fresh } = promptTokens(trace);
  const read = cached + fresh;
  return read > 0 ? `${count(cached)} of ${count(read)} prompt tokens came from the cache` : "No prompt tokens were read";
}

/** One sentence for each cache miss; text that is new needs none. */
function verdicts(trace) {
  const lines = trace.spans
    .filter(({ name, attributes }) => name === "prefill" && attributes["cache.cause"] in CAUSES)
    .map(({ attributes }) => CAUSES[attributes["cache.cause"]](PARTS[attributes["cache.segment"]] ?? "the prompt"));
  return [...new Set(lines)];
}

const PARTS = {
  system: "the system prompt",
  tools: "the tool definitions",
  history: "the conversation so far",
  passages: "the passages",
  question: "the question",
  results: "the tool results",
};

const CAUSES = {
  edited: (part) => `The cache matched up to ${part}, which changed since the last turn.`,
  evicted: (part) => `The cache matched up to ${part}; the rest was evicted to make room.`,
  retokenised: (part) => `The cache matched up to ${part}, where the same text has different tokens.`,
};

function traceLink(trace) {
  return el("a", { href: `/ops#/trace/${encodeURIComponent(trace.id)}` }, "Open the trace");
}

/** One sentence about the longest part. */
function explain(trace, pieces) {
  const [longest] = totals(pieces.filter(({ gap }) => !gap)).sort((a, b) => b.duration_ms - a.duration_ms);
  if (longest === undefined) return "This trace has no spans.";
  const part = share(longest.duration_ms, trace.duration_ms);
  const work = WORK[kindOf(longest.name)](trace, longest.name);
  return `${duration(longest.duration_ms)} of ${duration(trace.duration_ms)} (${part}) was spent ${work}.`;
}

const WORK = {
  edge: () => "receiving the request",
  auth: () => "authenticating the request",
  hydrate: () => "loading the conversation",
  retrieve: () => "finding passages in the documents",
  assemble: () => "assembling the prompt",
  tokenize: () => "tokenizing the prompt",
  connect: () => "reaching an engine",
  queue: () => "waiting for a free slot in the engine",
  prefill: (trace) => `reading the prompt, ${count(attributeSum(trace, "prefill", "new_tokens"))} new tokens`,
  first_token: () => "sending the first token",
  decode: (trace) => `writing the answer, ${count(attributeSum(trace, "decode", "tokens"))} tokens`,
  tool: () => "waiting for tools",
  flush: () => "saving and sending the rest",
  other: (_, name) => `in ${name}`,
};
