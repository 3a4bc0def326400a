// A turn that failed: what happened, and the one action that helps.

import { el } from "../shared/dom.js";
import { icon } from "../shared/icons.js";

const BUSY_S = 3; // when the worker sends no Retry-After

/** `retry()` sends the question again, `startNew()` opens an empty conversation. */
export function problem(error, { retry, startNew }) {
  const [message, action] = advice(error, { retry, startNew });
  return el(
    "div",
    { class: "problem", role: "alert", "data-status": String(error.status) },
    icon("warning"),
    el("p", {}, message, error.requestId && el("small", {}, ` Request ${error.requestId}`)),
    action,
  );
}

function advice(error, { retry, startNew }) {
  if (error.status === 429 || error.status === 503) {
    return ["The worker is busy with other answers.", countdown(error.retryAfterS ?? BUSY_S, retry)];
  }
  if (error.status === 401) {
    return [error.message, el("a", { class: "button", href: "/" }, "Reload")];
  }
  if (error.code === "context_length_exceeded") {
    return [error.message, el("button", { type: "button", class: "button", click: startNew }, "New conversation")];
  }
  return [error.message, el("button", { type: "button", class: "button", click: retry }, icon("retry"), "Try again")];
}

/** A button that counts down and retries when it reaches zero. */
function countdown(seconds, retry) {
  const button = el("button", { type: "button", class: "button numeric" });
  const due = performance.now() + seconds * 1000;
  let timer = null;
  const once = () => {
    clearTimeout(timer);
    if (button.isConnected) retry();
  };
  const tick = () => {
    const left = Math.ceil((due - performance.now()) / 1000);
    if (left <= 0) return once();
    button.textContent = `Trying again in ${left} s`;
    timer = setTimeout(tick, 200);
  };
  button.addEventListener("click", once);
  tick();
  return button;
}
