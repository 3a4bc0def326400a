// Answers that are being written, by conversation: what a page needs to go on reading after it was loaded again.

import { forget, recall, remember } from "../shared/preferences.js";

const name = (conversation) => `running.${conversation}`;

/** {id, question} of the answer that this conversation waits for, or null. */
export function runningIn(conversation) {
  return JSON.parse(recall(name(conversation), "null"));
}

export function begun(conversation, id, question) {
  remember(name(conversation), JSON.stringify({ id, question }));
}

export function ended(conversation) {
  forget(name(conversation));
}
