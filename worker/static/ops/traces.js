// The list of answers: what was asked, where the time went, and what made it slow. Each leads to its trace.

import { bar } from "../shared/bar.js";
import { el } from "../shared/dom.js";
import { count, duration, moment } from "../shared/format.js";
import { tile } from "../shared/segments.js";
import { mainCause } from "../shared/cause.js";

const US = 1000; // per millisecond

/** Rows that did not change stay in the page as they are: what is selected or focused in them survives newer answers. */
export class TraceList {
  constructor(place) {
    this.place = place;
    this.list = el("ol", { class: "traces numeric" });
    this.rows = new Map(); // id -> {said, node}
  }

  /** `turns` and `usual` as in /ops/api/traces; `address(id)` is where a row leads to. */
  show(turns, usual, address) {
    const longest = Math.max(1, ...turns.map((turn) => turn.duration_ms));
    this.rows = new Map(turns.map((turn) => [turn.id, this.row(turn, usual[turn.surface] ?? {}, address(turn.id))]));
    const nodes = [...this.rows.values()].map(({ node }) => node);
    for (const [i, turn] of turns.entries()) stretch(nodes[i], turn, longest);
    arrange(this.list, nodes);
    if (!this.list.isConnected) this.place.replaceChildren(this.list);
  }

  row(turn, usual, address) {
    const drawn = { ...turn, spans: (turn.stages ?? []).map(span) };
    const cause = mainCause(drawn, usual);
    const said = JSON.stringify([turn, cause?.text, address]);
    const known = this.rows.get(turn.id);
    return known?.said === said ? known : { said, node: rowNode(turn, drawn, cause, address) };
  }
}

/** Make these the children of a list, in this order, and move none that is in its place. */
function arrange(list, nodes) {
  const kept = new Set(nodes);
  for (const node of [...list.children]) if (!kept.has(node)) node.remove();
  let at = list.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else list.insertBefore(node, at);
  }
}

function rowNode(turn, drawn, cause, address) {
  return el(
    "li",
    { "data-trace": turn.id },
    el("a", { class: "trace-when", href: address }, moment(turn.started_at)),
    el("span", { class: "trace-what" }, turn.question ?? el("span", { class: "quiet" }, unnamed(turn))),
    status(turn),
    el("span", { class: "trace-bar" }, bar(tile(drawn), drawn.duration_ms)),
    el("span", { class: cause?.unusual ? "trace-cause is-unusual" : "trace-cause" }, cause?.text ?? ""),
    number("first token", duration(turn.ttft_ms), turn.within_target === false),
    number("total", duration(turn.duration_ms)),
    number("tokens", count(turn.output_tokens)),
  );
}

/** The bar is as long as the answer took, in proportion to the longest of the list. */
function stretch(node, turn, longest) {
  node.querySelector(".bar").style.maxWidth = `${Math.max(2, (100 * turn.duration_ms) / longest)}%`;
}

function unnamed({ agent, surface, model, response_id: response }) {
  const kind = response === null ? surface : `${surface} answer`;
  return [kind, agent || model].filter(Boolean).join(" · ");
}

function number(name, value, alarming = false) {
  return el("span", { class: alarming ? "trace-number alarming" : "trace-number" }, el("small", {}, name), value);
}

function span([name, startUs, durationUs, lane]) {
  return { name, lane, parent: null, start_ms: startUs / US, duration_ms: durationUs / US, attributes: {} };
}

export function status({ status: name, within_target: within }) {
  const shown = name === "completed" && within === false ? "late" : (name ?? "unknown");
  const title = shown === "late" ? "completed, but missed the target of its surface" : null;
  return el("span", { class: "status", "data-status": shown, title }, shown);
}
