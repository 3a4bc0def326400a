// One file of a store, at whatever stage it is.

import { el } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { icon } from "../shared/icons.js";

const STATES = { in_progress: "Reading", cancelled: "Cancelled" };

/** Of a file that the worker has: as in the list of a store. */
export function storedRow(file, remove) {
  const name = file.firsttoken_filename ?? file.id;
  return row(name, file.status, told(file), { share: file.status === "in_progress" ? null : undefined, remove, label: `Delete ${name}` });
}

/** Of a file on its way: {name, state, share, error}. */
export function sendingRow({ name, state, share, error }, remove) {
  const words = { waiting: "Waiting", sending: `Uploading ${Math.round(share * 100)}%`, failed: error }[state];
  const label = state === "failed" ? `Dismiss ${name}` : `Cancel ${name}`;
  return row(name, state, words, { share: state === "failed" ? undefined : share, remove, label });
}

function told({ status, last_error: error, firsttoken_passages: passages }) {
  if (status === "completed") return passages === 1 ? "1 passage" : `${count(passages ?? 0)} passages`;
  return status === "failed" ? (error?.message ?? "It could not be read.") : STATES[status];
}

/** `share` of the bar; null while nobody knows how long it takes, undefined where nothing goes on. */
function row(name, state, words, { share, remove, label }) {
  const bar = share === undefined ? null : el("progress", { max: "1", value: share, "aria-label": `${words}: ${name}` });
  return el(
    "li",
    { class: "document", "data-state": state },
    icon(state === "failed" ? "warning" : "file"),
    el("span", { class: "document-name", title: name }, name),
    el("span", { class: "document-state" }, words),
    el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, click: remove }, icon(state === "completed" || state === "failed" ? "trash" : "close")),
    bar,
  );
}
