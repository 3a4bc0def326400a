// A turn that failed: what happened, the one action that helps, and the end of it.

import { el } from "../shared/dom.js";
import { icon } from "../shared/icons.js";
import { IN_USE } from "./reading.js";
import { signInButton } from "../shared/sign-in-button.js";

const BUSY_S = 3; // when the worker sends no Retry-After
const WAIT_S_MAX = 120; // nobody watches a button for longer: then the person decides
const GONE = "conversation_not_found"; // it was deleted in another tab
const FULL = "context_length_exceeded";
const SPENT = "insufficient_quota"; // the budget of a day: to ask again sooner is of no use

/** `retry()` sends the question again, `remove()` gives it up, `startNew()` takes it to a new conversation; `ready()` says whether one may be
 *  sent now. */
export function problem(error, { retry, remove, ready, startNew }) {
  const [message, action] = advice(error, { retry, ready, startNew });
  return el(
    "div",
    { class: "problem", role: "alert", "data-status": String(error.status) },
    icon("warning"),
    el("p", {}, message, error.requestId && el("small", {}, ` Request ${error.requestId}`)),
    action,
    el("button", { type: "button", class: "icon-button", "aria-label": "Delete", title: "Delete", click: remove }, icon("trash")),
  );
}

function advice(error, { retry, ready, startNew }) {
  const waitS = error.retryAfterS ?? BUSY_S;
  if (error.code === IN_USE) return ["The question has arrived and waits for its turn.", countdown(waitS, retry, ready)];
  if ((error.status === 429 || error.status === 503) && error.code !== SPENT && waitS <= WAIT_S_MAX) {
    return [withoutAdvice(error.message), countdown(waitS, retry, ready)];
  }
  if (error.status === 401) {
    return [error.message, signInButton()];
  }
  if (error.code === FULL || error.code === GONE) {
    const message = error.code === GONE ? "This conversation no longer exists." : error.message;
    return [message, el("button", { type: "button", class: "button", click: startNew }, "New conversation")];
  }
  return [error.message, again(retry)];
}

function again(retry) {
  return el("button", { type: "button", class: "button", click: retry }, icon("retry"), "Try again");
}

/** The button beside it says when. */
function withoutAdvice(message) {
  return message.replace(/ (Close one, or t|T)ry again (later|in a moment)\.$/, "");
}

/** A button that counts down and retries when it reaches zero; where that may not be done then, the person does it. */
function countdown(seconds, retry, ready) {
  const button = el("button", { type: "button", class: "button numeric", click: () => act() });
  const due = performance.now() + seconds * 1000;
  let timer = null;
  const act = () => {
    clearTimeout(timer);
    retry();
  };
  const tick = () => {
    const left = Math.ceil((due - performance.now()) / 1000);
    if (left > 0) {
      button.textContent = `Trying again in ${left} s`;
      timer = setTimeout(tick, 200);
    } else if (button.isConnected && ready()) act();
    else button.replaceWith(again(retry));
  };
  tick();
  return button;
}
