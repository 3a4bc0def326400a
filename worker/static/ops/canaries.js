// What is on trial: both kinds of answers side by side, and what they say so far.

import { el } from "../shared/dom.js";
import { count, duration } from "../shared/format.js";

const MEASURES = {
  failed: "Failed", late: "Late", declined: "Declined", first_token: "First token", pace: "Per token",
  tokens: "Tokens computed", cost: "Cost", thumbs_down: "Thumbs down", graded: "Graded as wrong",
};
const DECISIONS = { "go on": "Too early to tell", "roll back": "Worse: being rolled back", promote: "Ready to promote" };
const VERDICTS = { open: "", worse: "worse", harmless: "no worse" };

/** `canaries` as in /ops/api/canaries. */
export function trials(canaries) {
  return canaries.map((canary) =>
    el("article", { class: "trial" },
      el("h3", {}, canary.name),
      el("p", { class: "quiet" }, described(canary)),
      canary.state === "running" && el("p", {}, el("strong", {}, DECISIONS[canary.verdict] ?? canary.verdict)),
      table(canary),
    ),
  );
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
