// What the person thinks of an answer: up or down, and a word about it.

import { json } from "../shared/api.js";
import { el } from "../shared/dom.js";
import { icon } from "../shared/icons.js";

const COMMENT_CHARS_MAX = 512; // what the worker keeps

/** Two buttons, and a field for a word once one of them is pressed. `rated` is {rating, comment} of earlier, or null;
 *  `failed(error)` is called when the worker does not take what is chosen. */
export function feedback(responseId, rated, failed) {
  let rating = rated?.rating ?? null;
  const group = el("span", { class: "feedback", role: "group", "aria-label": "Feedback" });
  const thumbs = { up: thumb("up", "Good answer"), down: thumb("down", "Bad answer") };
  let form = null; // made when it is needed: browsers look through all forms of a page for what they can fill in
  group.append(thumbs.up, thumbs.down);

  function thumb(name, label) {
    const attributes = { type: "button", class: "action", "aria-label": label, title: label, "aria-pressed": "false" };
    return el("button", { ...attributes, click: () => rate(rating === name ? null : name) }, icon(`thumb-${name}`));
  }

  async function rate(chosen) {
    if (!(await send({ rating: chosen }))) return;
    rating = chosen;
    form?.remove();
    form = rating === null ? null : commentForm();
    if (form !== null) group.append(form);
    show();
  }

  function commentForm() {
    const field = el("input", { type: "text", maxlength: COMMENT_CHARS_MAX, "aria-label": "Comment", placeholder: "Tell us why (optional)", dir: "auto" });
    const submit = (event) => {
      event.preventDefault();
      comment(field.value.trim());
    };
    return el("form", { class: "feedback-word", autocomplete: "off", submit }, field);
  }

  function show() {
    for (const [name, button] of Object.entries(thumbs)) button.setAttribute("aria-pressed", String(name === rating));
    group.dataset.rated = String(rating !== null);
  }

  async function comment(text) {
    if (!(await send({ rating, comment: text }))) return;
    form.replaceChildren(el("span", { class: "quiet", role: "status" }, "Thank you"));
  }

  async function send(body) {
    try {
      await json("POST", `/v1/responses/${encodeURIComponent(responseId)}/feedback`, { body });
      return true;
    } catch (error) {
      failed(error);
      return false;
    }
  }

  show();
  if (rated?.comment) group.title = rated.comment;
  return group;
}
