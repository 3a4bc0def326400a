// The row of actions under a question and under its answer.

import { copyButton, copyText } from "../shared/copy.js";
import { el } from "../shared/dom.js";
import { icon } from "../shared/icons.js";
import { openMenu } from "../shared/menu.js";
import { feedback } from "./feedback.js";

const COPIED_MS = 1600;

/** Under an answer; `exchange` has its texts, `node` and what it was rated. `copied(done)` is told whether the clipboard has it;
 *  the other callbacks are called without arguments. */
export function answerActions(exchange, { regenerate, timing, remove, failed, copied }) {
  return row(
    copyButton(() => exchange.markdown, () => exchange.answer.body, { class: "action" }),
    action("retry", "Regenerate", regenerate),
    timing && action("gauge", "Timing", timing, { brief: true }),
    action("trash", "Delete", remove, { brief: true }),
    exchange.responseId && feedback(exchange.responseId, exchange.rated, failed),
    moreButton(exchange, copied),
  );
}

export function questionActions(question, node, { edit }) {
  return row(copyButton(() => question, () => node, { class: "action" }), action("pencil", "Edit", edit));
}

/** What is seldom wanted. */
function moreButton(exchange, copied) {
  const label = "More about this answer";
  const button = el("button", { type: "button", class: "action", "aria-label": label, title: label, "aria-haspopup": "menu", click: open }, icon("more"));

  async function copy() {
    const done = await copyText(exchange.plainText, exchange.answer.body);
    copied(done);
    if (!done) return;
    button.replaceChildren(icon("check"));
    setTimeout(() => button.replaceChildren(icon("more")), COPIED_MS);
  }

  function open() {
    const { answer } = exchange;
    const written = answer.asWritten;
    openMenu(button, [
      { image: "text", label: "Copy as plain text", act: copy },
      { image: "code", label: written ? "Show formatted" : "Show Markdown source", act: () => answer.showAsWritten(!written) },
    ]);
  }

  return button;
}

/** A brief one is an icon alone where there is little room. */
function action(image, label, click, { brief = false } = {}) {
  const attributes = { type: "button", class: "action", "data-brief": brief, "aria-label": label, click };
  return el("button", attributes, icon(image), el("span", {}, label));
}

function row(...buttons) {
  return el("div", { class: "actions" }, ...buttons.filter(Boolean));
}
