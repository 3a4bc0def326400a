// "2 of 3": the versions of a turn, one of which is shown.

import { el } from "../shared/dom.js";
import { icon } from "../shared/icons.js";

/** `ids` of the versions, oldest first, `at` the one that is shown; null where there is only one. */
export function versionPager(ids, at, { choose }) {
  if (ids.length < 2 || at < 0) return null;
  const turn = (to, name, label) =>
    el("button", { type: "button", class: `action ${name}`, "aria-label": label, title: label, disabled: ids[to] === undefined,
      click: () => choose(ids[to]) }, icon("chevron"));
  return el(
    "div",
    { class: "versions numeric", role: "group", "aria-label": "Versions" },
    turn(at - 1, "previous", "Previous version"),
    el("span", {}, `${at + 1} of ${ids.length}`),
    turn(at + 1, "next", "Next version"),
  );
}
