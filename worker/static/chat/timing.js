// "Why was this slow?": the answer's own trace as a bar, and in words when opened.

import { lanes } from "../shared/bar.js";
import { json } from "../shared/api.js";
import { explained } from "../shared/cause.js";
import { el } from "../shared/dom.js";
import { count, duration, pace, share } from "../shared/format.js";
import { icon } from "../shared/icons.js";
import { attributeSum, kindOf, promptTokens, tile, totals } from "../shared/segments.js";
import { sentence, words } from "../shared/words.js";

/** What is usual comes with a stored trace; for another one it is asked when the panel is opened. */
export function timing(trace) {
  const pieces = tile(trace);
  const why = el("div", { class: "timing-why" }, ...because(trace));
  const details = el(
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
      why,
      el("p", {}, explain(trace, pieces)),
      ...legend(pieces, trace.duration_ms),
      ...verdicts(trace).map((line) => el("p", {}, line)),
      el("p", { class: "timing-foot numeric" }, el("span", {}, cacheLine(trace)), traceLink(trace)),
    ),
  );
  if (trace.usual === undefined) details.addEventListener("toggle", () => askUsual(trace, why), { once: true });
  return details;
}

/** What took unusually long, the most important first; nothing while nobody knows what is usual. */
function because(trace) {
  if (!trace.usual || Object.keys(trace.usual).length === 0) return [];
  return explained(trace).map((sentence) => el("p", {}, sentence));
}

async function askUsual(trace, why) {
  const stored = await json("GET", `/ops/api/traces/${encodeURIComponent(trace.id)}`).catch(() => ({})); // it explains less then
  why.replaceChildren(...because({ ...trace, usual: stored.usual }));
}

/** The largest parts; the others are folded. */
function legend(pieces, totalMs) {
  const parts = totals(pieces).sort((a, b) => b.duration_ms - a.duration_ms);
  const rows = (some, inWords) => el("ul", { class: inWords ? "legend is-large numeric" : "legend numeric" }, ...some.map((part) => legendRow(part, totalMs, inWords)));
  const [large, small] = [parts.slice(0, LARGEST), parts.slice(LARGEST)];
  if (small.length < 2) return [rows(parts, true)];
  const sum = small.reduce((all, { duration_ms: ms }) => all + ms, 0);
  const told = `${small.length} smaller parts, ${duration(sum)} together`;
  return [rows(large, true), el("details", { class: "legend-rest" }, el("summary", {}, told), rows(small, false))];
}

/** Behind reasoning and calls, the answer has a first token of its own. */
function numbers(trace) {
  const answered = trace.spans.find(({ name }) => name === "first_answer");
  const parts = [
    ["First token", trace.ttft_ms === null ? null : duration(trace.ttft_ms)],
    ["Answer after", answered ? duration(answered.duration_ms) : null],
    ["", pace(trace.tpot_ms)],
    ["Total", duration(trace.duration_ms)],
  ];
  return parts
    .filter(([, value]) => value !== null)
    .map(([name, value]) => el("span", {}, name ? `${name} ` : "", el("b", {}, value)));
}

function legendRow({ name, duration_ms }, totalMs, inWords) {
  const gap = name === "gap";
  const own = gap ? "between spans" : name;
  return el(
    "li",
    { "data-name": own },
    el("span", { class: gap ? "swatch gap" : "swatch", "data-span": gap ? null : kindOf(name) }),
    el("span", { class: "legend-name", title: own }, inWords ? sentence(words(name)) : own),
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

const LARGEST = 3;

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
  no_checkpoint: (part) => `The cache goes on within ${part}, but the model's recurrent state was not kept there.`,
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
  first_token: (_, name) => words(name),
  decode: (trace) => `writing the answer, ${count(attributeSum(trace, "decode", "tokens"))} tokens`,
  tool: () => "waiting for tools",
  flush: () => "saving and sending the rest",
  other: (_, name) => `in ${name}`,
};
