// One trace: what was asked, what was unusual, its numbers, its waterfall, and the span that is looked at.

import { copyButton } from "../shared/copy.js";
import { el } from "../shared/dom.js";
import { count, duration, moment, pace } from "../shared/format.js";
import { attributeSum, promptTokens, tile as tilePieces } from "../shared/segments.js";
import { explained, unusualOf } from "../shared/cause.js";
import { Inspector } from "./inspector.js";
import { tile } from "./tiles.js";
import { status } from "./traces.js";
import { isFailed, waterfall } from "./waterfall.js";
import { sentence, words } from "../shared/words.js";

/** `trace` as in /ops/api/traces/{id}; `around` has the ids of the answers before and after it in the list. `compare()` is
 *  called when another answer is to be chosen beside it. */
export function traceView(trace, around, compare) {
  const all = { name: "The whole answer", start_ms: 0, duration_ms: trace.duration_ms, attributes: turnAttributes(trace) };
  const inspector = new Inspector(all, trace);
  const failed = trace.spans.filter(isFailed);
  // Where something went wrong, its being as fast as usual is no news.
  const why = failed.length > 0 && unusualOf(trace).length === 0 ? [] : explained(trace);
  const title = trace.question ?? why.shift() ?? failure(failed[0]);
  return [
    navigation(trace, around, compare),
    el(
      "header",
      { class: "trace-head" },
      el("h2", {}, title),
      el("p", { class: "trace-facts" }, ...facts(trace)),
      ...why.map((text) => el("p", { class: "why" }, text)),
    ),
    failures(failed),
    el("section", { class: "tiles", "aria-label": "Numbers of this answer" }, ...numbers(trace, tilePieces(trace))),
    el(
      "div",
      { class: "trace-columns" },
      el("section", { class: "card" }, waterfall(trace, (row) => inspector.look(row), (row) => inspector.pin(row))),
      inspector.node,
    ),
  ];
}

function navigation(trace, { before, after }, compare) {
  const to = (id, name, key) => {
    const attributes = { class: "button", rel: key, "aria-disabled": id ? null : "true" };
    return el("a", id ? { ...attributes, href: `#/trace/${encodeURIComponent(id)}` } : attributes, name);
  };
  const copy = copyButton(() => location.href, (button) => button, { class: "button", label: "Copy link" });
  const source = (rest) => ({ class: "button", href: `/ops/api/traces/${encodeURIComponent(trace.id)}${rest}`, target: "_blank" });
  return el(
    "nav",
    { class: "trace-nav", "aria-label": "Answers" },
    el("a", { class: "back", href: "#/" }, "All answers"),
    el("span", { class: "spring" }),
    to(before, "Previous", "prev"), to(after, "Next", "next"), 
    el("button", { type: "button", class: "button", click: compare }, "Compare"), copy,
    el("a", source(""), "JSON"), el("a", { ...source("?format=otlp"), title: "For OpenTelemetry collectors" }, "OTLP"),
  );
}

function facts(trace) {
  const conversation = trace.conversation_id;
  const link = conversation && el("a", { href: `/#/c/${encodeURIComponent(conversation)}` }, "Conversation");
  const id = el("code", { title: "the id of the trace" }, trace.id);
  const told = { Surface: trace.surface, Agent: trace.agent, Model: trace.model, Worker: trace.worker };
  const named = Object.entries(told).map(([title, name]) => name && el("span", { title }, name));
  const parts = [status(trace), moment(trace.started_at), ...named, link, id];
  return parts.filter(Boolean).map((part) => el("span", {}, part));
}

/** What went wrong stands before the numbers. */
function failures(failed) {
  if (failed.length === 0) return null;
  return el("ul", { class: "failures", "aria-label": "Failures" }, ...failed.map((span) => el("li", {}, failure(span))));
}

function failure({ name, attributes, start_ms }) {
  const kind = attributes["error.type"] ? ` with ${attributes["error.type"]}` : "";
  return `${sentence(words(name))} failed${kind}, ${duration(start_ms)} after the start.`;
}

function numbers(trace, pieces) {
  const { cached, fresh } = promptTokens(trace);
  const gaps = pieces.filter(({ gap }) => gap).reduce((sum, { duration_ms }) => sum + duration_ms, 0);
  const limit = trace.target?.ttft_ms ?? null; // a surface may set a target for the pace alone
  const target = limit && `target ${duration(limit)}`;
  const beforeToken = trace.ttft_ms === null ? "no text was sent" : (target ?? "from arrival to the first byte");
  const late = limit !== null && trace.ttft_ms > limit;
  const written = `${count(attributeSum(trace, "decode", "tokens"))} tokens`;
  const covered = gaps > 0 ? `${duration(gaps)} unaccounted for` : "every part accounted for";
  return [
    tile("First token", duration(trace.ttft_ms), beforeToken, late),
    tile("Time per token", duration(trace.tpot_ms), written, false, pace(trace.tpot_ms)),
    tile("Whole answer", duration(trace.duration_ms), covered),
    tile("Prompt", count(cached + fresh), `${count(cached)} tokens cached, ${count(fresh)} new`),
  ];
}

function turnAttributes(trace) {
  const { tenant, response_id: response } = trace;
  return { ...(tenant ? { tenant } : {}), ...(response ? { response } : {}), ...trace.attributes };
}
