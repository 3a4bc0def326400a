// Tool calls as rows that open: what was asked, what came back, how long it took.

import { el } from "../shared/dom.js";
import { duration } from "../shared/format.js";
import { icon } from "../shared/icons.js";

const PREVIEW_CHARS_MAX = 80;

export class Steps {
  constructor() {
    this.byItem = new Map();
    this.byCall = new Map();
    this.rows = [];
  }

  /** A new row for a call whose arguments may still be coming. */
  start(item) {
    const step = new Step(item);
    this.byItem.set(item.id, step);
    this.byCall.set(item.call_id ?? item.id, step);
    this.rows.push(step);
    return step.node;
  }

  writeArguments(itemId, delta) {
    this.byItem.get(itemId)?.writeArguments(delta);
  }

  called(item) {
    this.byItem.get(item.id)?.called(item.arguments);
  }

  returned(callId, output) {
    this.byCall.get(callId)?.returned(output);
  }

  /** The answer is over: calls without a result were not run. */
  settle() {
    for (const step of this.rows) step.settle();
  }

  /** Spans named tool:<name> are in the order of the calls of that name. */
  showDurations(spans) {
    const waiting = [...this.rows];
    for (const span of spans.filter(({ name }) => name.startsWith("tool:"))) {
      const i = waiting.findIndex((step) => `tool:${step.name}` === span.name);
      if (i >= 0) waiting.splice(i, 1)[0].took(span.duration_ms);
    }
  }
}

class Step {
  constructor({ name, arguments: json, server_label: server }) {
    this.name = server === undefined ? name : `${server}__${name}`; // as spans know it
    this.json = json ?? "";
    this.asking = el("span", { class: "step-asking" });
    this.telling = el("span", { class: "step-result" });
    this.time = el("span", { class: "step-time numeric" });
    this.asked = el("pre", { tabindex: "0" });
    this.answered = el("pre", { tabindex: "0" });
    this.result = el("div", { hidden: true }, el("h3", { class: "label" }, "Result"), this.answered);
    this.node = el(
      "details",
      { class: "step", "data-state": "running", "data-tool": name },
      el(
        "summary",
        {},
        el("span", { class: "step-mark" }, icon("tool")),
        el("span", { class: "step-name" }, server === undefined ? name.replaceAll("_", " ") : `${server}: ${name}`),
        el("span", { class: "step-preview" }, this.asking, this.telling),
        this.time,
        icon("chevron"),
      ),
      el("div", { class: "step-body" }, el("h3", { class: "label" }, "Arguments"), this.asked, this.result),
    );
    this.showArguments();
  }

  writeArguments(delta) {
    this.json += delta;
    this.showArguments();
  }

  called(json) {
    this.json = json;
    this.showArguments();
  }

  showArguments() {
    const value = parsed(this.json);
    this.asked.textContent = value === undefined ? this.json : JSON.stringify(value, null, 2);
    this.asking.textContent = cut(value === undefined ? this.json : values(value).join(", "));
  }

  returned(output) {
    const failed = output.startsWith("Error");
    const value = parsed(output);
    this.node.dataset.state = failed ? "failed" : "done";
    this.answered.textContent = value === undefined ? output : JSON.stringify(value, null, 2);
    this.result.hidden = false;
    this.telling.textContent = cut(this.news(output, value));
  }

  /** What the result says beyond the arguments that it repeats. */
  news(output, value) {
    if (value === undefined) return output;
    const known = new Set(values(parsed(this.json)));
    return values(value).filter((text) => !known.has(text)).join(", ");
  }

  settle() {
    if (this.node.dataset.state !== "running") return;
    this.node.dataset.state = "skipped";
    this.time.textContent = "not run";
  }

  took(ms) {
    this.time.textContent = duration(ms);
  }
}

function parsed(json) {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}

function values(value) {
  const list = value !== null && typeof value === "object" ? Object.values(value) : [value ?? ""];
  return list.map((entry) => (typeof entry === "object" ? JSON.stringify(entry) : String(entry)));
}

function cut(text) {
  return text.length > PREVIEW_CHARS_MAX ? `${text.slice(0, PREVIEW_CHARS_MAX - 1)}…` : text;
}
