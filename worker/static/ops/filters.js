// What is shown can be narrowed: each choice is a select that offers what there is.

import { byId, el } from "../shared/dom.js";
import { choices } from "./comparison.js";

const SLICES = ["surface", "model", "agent", "tenant"];
const FIXED = ["order", "status", "cache", "length"];
const CHOSEN = [...SLICES, ...FIXED, "against"];

export class Filters {
  /** `changed(names and values)` is called after each choice. */
  constructor(state, changed) {
    this.state = state;
    for (const name of CHOSEN) {
      byId(name).addEventListener("change", (event) => changed({ [name]: event.target.value }));
    }
    byId("q").addEventListener("input", (event) => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => changed({ q: event.target.value.trim() }), 250);
    });
    byId("clear").addEventListener("click", () => changed(Object.fromEntries([...SLICES, "start", "end", "at"].map((n) => [n, ""]))));
    byId("clear-step").addEventListener("click", () => changed({ at: "" }));
    this.restore();
  }

  /** Show what the address says. */
  restore() {
    for (const name of FIXED) byId(name).value = this.state[name];
    if (document.activeElement !== byId("q")) byId("q").value = this.state.q;
  }

  /** `facets` as in /ops/api/summary. A value that was chosen stays, also where nothing has it. */
  offer(facets) {
    for (const name of SLICES) {
      const chosen = this.state[name];
      const values = [...new Set([...facets[name], ...(chosen ? [chosen] : [])])];
      const select = byId(name);
      select.replaceChildren(
        el("option", { value: "" }, `Every ${name}`),
        ...values.map((value) => el("option", { value }, name === "tenant" ? value.slice(0, 8) : value)),
      );
      select.value = chosen;
      select.parentElement.hidden = values.length < 2 && !chosen;
    }
    const offered = choices(this.state, facets);
    byId("against").replaceChildren(...offered.map(([value, label]) => el("option", { value }, label)));
    byId("against").value = offered.some(([value]) => value === this.state.against) ? this.state.against : "";
  }
}
