// The row of actions under a question and under its answer.

import { copyButton } from "../shared/copy.js";
import { el } from "../shared/dom.js";
import { icon } from "../shared/icons.js";
import { feedback } from "./feedback.js";

/** Under an answer; `exchange` has `markdown`, `node` and what it was rated, and each of the callbacks is called without arguments. */
export function answerActions(exchange, { regenerate, timing, remove, failed }) {
  return row(
    copyButton(() => exchange.markdown, () => exchange.answer.body, { class: "action" }),
    action("retry", "Regenerate", regenerate),
    timing && action("gauge", "Timing", timing, { brief: true }),
    action("trash", "Delete", remove, { brief: true }),
    exchange.responseId && feedback(exchange.responseId, exchange.rated, failed),
  );
}

export function questionActions(question, node, { edit }) {
  return row(copyButton(() => question, () => node, { class: "action" }), action("pencil", "Edit", edit));
}

/** A brief one is an icon alone where there is little room. */
function action(image, label, click, { brief = false } = {}) {
  const attributes = { type: "button", class: "action", "data-brief": brief, "aria-label": label, click };
  return el("button", attributes, icon(image), el("span", {}, label));
}

function row(...buttons) {
  return el("div", { class: "actions" }, ...buttons.filter(Boolean));
}
