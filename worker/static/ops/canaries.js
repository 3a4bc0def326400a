// What is on trial: both kinds of answers side by side, what they say so far, and what is decided of it.

import { json } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";
import { count, duration } from "../shared/format.js";

const MEASURES = {
  failed: "Failed", late: "Late", declined: "Declined", first_token: "First token", pace: "Per token",
  tokens: "Tokens computed", cost: "Cost", thumbs_down: "Thumbs down", graded: "Graded as wrong",
};
const DECISIONS = { "go on": "Too early to tell", "roll back": "Worse: being rolled back", promote: "Ready to promote" };
const VERDICTS = { open: "", worse: "worse", harmless: "no worse" };

const NOBODY = ""; // requests that name no agent

/** The card of an operator, which asks by itself. Who may not decide sees no buttons. */
export class Trials {
  constructor() {
    this.shown = ""; // the answer that is shown: nodes that did not change keep their focus
    this.offered = null;
    this.form = byId("start-trial");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const { name, agent, treatment, share } = Object.fromEntries(new FormData(this.form));
      this.change("/ops/api/canaries", { name, agent, treatment, share: Number(share) / 100 });
    });
  }

  async refresh() {
    const told = await json("GET", "/ops/api/canaries").catch(() => ({ data: [], agents: [] })); // asked again soon
    const text = JSON.stringify(told);
    if (text === this.shown) return;
    this.shown = text;
    const { data, agents } = told;
    byId("on-trial").hidden = data.length === 0 && agents.length === 0;
    byId("trials").replaceChildren(...data.map((canary) => this.trial(canary, agents.length > 0)));
    this.offer(agents);
  }

  trial(canary, mayDecide) {
    const decide = (state, label) =>
      el("button", {
        type: "button", class: "button",
        click: () => this.change(`/ops/api/canaries/${encodeURIComponent(canary.name)}`, { state }),
      }, label);
    return el("article", { class: "trial" },
      el("h3", {}, canary.name),
      el("p", { class: "quiet" }, described(canary)),
      canary.state === "running" && el("p", {}, el("strong", {}, DECISIONS[canary.verdict] ?? canary.verdict)),
      table(canary),
      mayDecide && el("p", { class: "decide" },
        canary.state === "running" && decide("promoted", "Promote"),
        decide("aborted", canary.state === "running" ? "Abort" : "End"),
      ),
    );
  }

  /** What may be tried, in the place of what. */
  offer(agents) {
    if (agents.join() === this.offered) return; // what somebody has chosen stays
    this.offered = agents.join();
    byId("start-trial-fold").hidden = agents.length === 0;
    const options = (names) => names.map((name) => el("option", { value: name }, name || "Requests that name no agent"));
    byId("trial-agent").replaceChildren(...options([NOBODY, ...agents]));
    byId("trial-treatment").replaceChildren(...options(agents));
  }

  async change(path, body) {
    const said = byId("trial-error");
    said.textContent = "";
    try {
      await json("POST", path, { body });
      if (path.endsWith("/canaries")) this.form.reset();
    } catch (error) {
      said.textContent = error.message;
    }
    await this.refresh();
  }
}

function described({ agent, treatment, share, state }) {
  const whose = agent ? `of ${agent}` : "that name no agent";
  const which = state === "promoted" ? "all" : `${Math.round(100 * share)}%`;
  return `${treatment} answers ${which} of the conversations ${whose}.`;
}

function table({ conversations, measures }) {
  const heads = ["", "As before", "On trial", ""];
  return el("table", { class: "numeric" },
    el("thead", {}, el("tr", {}, ...heads.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {},
      row("Conversations", count(conversations.control), count(conversations.treatment), ""),
      ...measures.map((each) =>
        row(MEASURES[each.measure] ?? each.measure, shown(each.control, each.unit), shown(each.treatment, each.unit), verdict(each)),
      ),
    ),
  );
}

function row(...cells) {
  return el("tr", {}, ...cells.map((cell) => el("td", {}, cell)));
}

function verdict({ verdict }) {
  return el("span", verdict === "worse" ? { class: "alarming" } : { class: "quiet" }, VERDICTS[verdict] ?? verdict);
}

function shown(value, unit) {
  if (value === null) return "–";
  if (unit === "ms") return duration(value);
  if (unit === "price") return String(Number(value.toPrecision(3)));
  return unit ? count(Math.round(value)) : `${(100 * value).toFixed(1)}%`;
}
