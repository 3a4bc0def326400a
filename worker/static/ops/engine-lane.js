// What the engine did for an answer, step by step: how long each waited, what it read and wrote, and in what company.

import { el } from "../shared/dom.js";
import { count, duration } from "../shared/format.js";
import { endOf, kindOf } from "../shared/segments.js";

const PHASES = ["queue", "prefill", "decode"];

/** One {queue, prefill, decode} of spans for each step, without those that a step did not come to. */
export function engineSteps(trace) {
  const steps = [];
  for (const span of trace.spans.filter(({ name, lane }) => lane === "main" && PHASES.includes(name))) {
    const step = steps.at(-1);
    if (step === undefined || PHASES.slice(PHASES.indexOf(span.name)).some((name) => name in step)) steps.push({});
    steps.at(-1)[span.name] = span;
  }
  return steps;
}

/** Null where the engine had nothing to do. `place(node, from, to)` puts a node on the scale of the other lanes. */
export function engineLane(trace, place) {
  const steps = engineSteps(trace);
  if (steps.length === 0) return null;
  const rows = steps.map((step, at) => row(step, at, trace, place));
  return el("section", { class: "lane engine", "data-lane": "engine", "aria-label": "Lane engine" }, el("h3", {}, "Engine"), el("ol", {}, ...rows));
}

function row(step, at, trace, place) {
  const spans = PHASES.map((name) => step[name]).filter(Boolean);
  const stretches = spans.map((span) => {
    const node = el("span", { class: "stretch", "data-span": kindOf(span.name), title: `${span.name} ${duration(span.duration_ms)}` });
    place(node, span.start_ms, endOf(span, trace));
    return node;
  });
  const took = endOf(spans.at(-1), trace) - spans[0].start_ms;
  return el(
    "li",
    { class: "row engine-step" },
    el("span", { class: "row-name" }, `step ${at + 1}`),
    el("span", { class: "track" }, ...stretches),
    el("span", { class: "row-time" }, duration(took)),
    el("p", { class: "engine-told" }, ...told(step)),
  );
}

function told({ queue, prefill, decode }) {
  const phases = [
    prefill && ["read", reading(prefill.attributes)],
    decode && ["wrote", writing(decode.attributes)],
    !prefill && queue && ["waited", ["never got a slot"]],
  ].filter(Boolean);
  return phases.map(([name, parts]) => el("span", {}, el("b", {}, name), " ", parts.join(", ")));
}

function reading({ new_tokens: fresh, cached_tokens: cached, chunks, batch }) {
  return [
    `${counted(fresh, "new token")}${chunks > 0 ? ` in ${counted(chunks, "chunk")}` : ""}`,
    `${count(cached ?? 0)} cached`,
    company(batch),
  ].filter(Boolean);
}

function writing({ tokens, steps, batch, drafted, accepted }) {
  return [
    `${counted(tokens, "token")}${steps > 0 ? ` in ${counted(steps, "step")}` : ""}`,
    drafted > 0 && `${count(accepted)} of ${count(drafted)} drafted accepted`,
    company(batch),
  ].filter(Boolean);
}

/** How many requests were computed together; nothing of engines that do not tell. */
function company(batch) {
  return batch === undefined ? null : `batch of ${batch}`;
}

function counted(number, noun) {
  return `${count(number ?? 0)} ${noun}${number === 1 ? "" : "s"}`;
}
