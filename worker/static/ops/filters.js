// What is shown can be narrowed: each dimension is a select that offers what there is.

import { byId, el } from "../shared/dom.js";
import { choices } from "./comparison.js";
import { DIMENSIONS, NAMES, labelOf, valuesOf } from "./dimensions.js";

const CHOSEN = [...NAMES, "order", "against", "of"];
const NOTHING = Object.fromEntries([...NAMES, "start", "end", "at"].map((name) => [name, ""]));

export class Filters {
  /** `changed(names and values)` is called after each choice. */
  constructor(state, changed) {
    this.state = state;
    byId("filters").prepend(...NAMES.map(select));
    for (const name of CHOSEN) {
      byId(name).addEventListener("change", (event) => changed({ [name]: event.target.value }));
    }
    byId("q").addEventListener("input", (event) => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => changed({ q: event.target.value.trim() }), 250);
    });
    byId("clear").addEventListener("click", () => changed(NOTHING));
    byId("clear-step").addEventListener("click", () => changed({ at: "" }));
    byId("narrow").addEventListener("click", () => this.unfold(byId("narrow").getAttribute("aria-expanded") !== "true"));
    this.unfold(false);
    this.restore();
  }

  /** On a phone they are folded away: there are more of them than there is room. */
  unfold(open) {
    byId("narrow").setAttribute("aria-expanded", String(open));
    byId("filters").classList.toggle("is-open", open);
  }

  /** Show what the address says. */
  restore() {
    const count = NAMES.filter((name) => this.state[name]).length;
    byId("narrow").textContent = count > 0 ? `Filters (${count})` : "Filters";
    for (const name of ["order", "of"]) byId(name).value = this.state[name];
    byId("of").parentElement.hidden = !this.state.against;
    if (document.activeElement !== byId("q")) byId("q").value = this.state.q;
  }

  /** `facets` and `keyNames` as in /ops/api/summary. What has one value is no choice. */
  offer(facets, keyNames) {
    for (const name of NAMES) {
      const chosen = this.state[name];
      const values = valuesOf(name, facets, chosen);
      fill(byId(name), [option("", DIMENSIONS[name].all), ...values.map((value) => option(value, labelOf(name, value, keyNames)))]);
      byId(name).value = chosen;
      byId(name).parentElement.hidden = values.length < 2 && !chosen;
    }
    const groups = choices(this.state, facets, keyNames);
    const nodes = groups.map(({ label, options }) => el("optgroup", { label }, ...options.map(([value, text]) => option(value, text))));
    fill(byId("against"), [option("", "Compare with…"), ...nodes]);
    byId("against").value = this.state.against;
  }
}

function select(name) {
  return el("label", { hidden: true }, el("span", { class: "sr-only" }, DIMENSIONS[name].all), el("select", { id: name }));
}

function option(value, text) {
  return el("option", { value }, text);
}

/** One that offers the same stays as it is: to replace the options of an open list closes it. */
function fill(select, nodes) {
  const same = select.childNodes.length === nodes.length && nodes.every((node, i) => node.isEqualNode(select.childNodes[i]));
  if (!same) select.replaceChildren(...nodes);
}
