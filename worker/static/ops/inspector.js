// What is known of one span. A click pins it; until then it follows the pointer.

import { el } from "../shared/dom.js";
import { duration } from "../shared/format.js";
import { icon } from "../shared/icons.js";
import { sentence, words } from "../shared/words.js";

export class Inspector {
  /** `whole` is shown while no span is; `usual` and `calls` as in /ops/api/traces/{id}. */
  constructor(whole, { usual, calls, spans }) {
    this.node = el("aside", { class: "card inspector", "aria-label": "Span", "aria-live": "polite" });
    this.whole = whole;
    this.usual = usual ?? {};
    this.calls = calls ?? [];
    this.spans = spans;
    this.pinned = null;
    this.show(whole);
  }

  look(row) {
    if (this.pinned === null) this.show(row ?? this.whole);
  }

  pin(row) {
    this.pinned = row;
    this.show(row);
  }

  unpin() {
    this.pinned = null;
    for (const row of document.querySelectorAll(".waterfall [aria-pressed=true]")) row.setAttribute("aria-pressed", "false");
    this.show(this.whole);
  }

  show(row) {
    const close = el("button", { class: "icon-button", type: "button", "aria-label": "Close", click: () => this.unpin() });
    close.append(icon("close"));
    this.node.classList.toggle("is-pinned", this.pinned !== null);
    this.node.replaceChildren(
      el("header", {}, el("h3", {}, row.name), this.pinned !== null && close),
      row === this.whole ? "" : el("p", { class: "quiet" }, sentence(words(row.name))),
      facts(row, this.usual[row.name]),
      ...this.said(row),
    );
  }

  /** What a tool was asked and answered, as far as this reader may know. */
  said(row) {
    if (!row.name.startsWith("tool:")) return [];
    const same = this.spans.filter(({ name }) => name === row.name);
    const place = same.findIndex(({ start_ms }) => start_ms === row.start_ms);
    const call = this.calls.filter(({ name }) => `tool:${name}` === row.name)[place];
    if (call === undefined) return [];
    return [["Arguments", call.arguments], ["Result", call.output]]
      .filter(([, text]) => text)
      .flatMap(([title, text]) => [el("h4", {}, title), el("pre", { tabindex: "0" }, tidy(text))]);
  }
}

function facts({ start_ms, duration_ms, lane, attributes }, usual) {
  const rows = [
    ["from", start_ms === 0 ? "0" : duration(start_ms)],
    ["to", duration(start_ms + duration_ms)],
    ["took", duration(duration_ms)],
    ...(usual ? [["usually", `${duration(usual.p50_ms)}, p95 ${duration(usual.p95_ms)}`]] : []),
    ...(lane ? [["lane", lane]] : []),
    ...Object.entries(attributes ?? {}).filter(([, value]) => value !== null && value !== undefined),
  ];
  return el("dl", { class: "numeric" }, ...rows.flatMap(([key, value]) => [el("dt", { title: key }, named(key)), el("dd", {}, shown(value))]));
}

/** Our own prefix, and that of the conventions, say nothing to people. */
function named(key) {
  return key.replace(/^(firsttoken|gen_ai\.usage)[.:]/, "").replaceAll("_", " ");
}

function shown(value) {
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toFixed(3))) : String(value);
}

function tidy(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not JSON, or cut
  }
}
