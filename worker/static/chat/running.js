// Questions that wait for their answer, by conversation: what a page needs to go on after it was loaded again.

import { withoutPictures } from "./attached.js";
import { forget, recallJson, remember } from "../shared/preferences.js";

const name = (conversation) => `running.${conversation}`;

/** {id, question, versions} of the answer that this conversation waits for, or null; `id` is null until the worker took
 *  it, and `versions` are the ids of those that it stands beside. */
export function runningIn(conversation) {
  const noted = recallJson(name(conversation), null);
  return typeof noted?.question === "string" ? noted : null;
}

/** Without its pictures, which are larger than what a browser keeps. Without `versions`, those that were noted before stay. */
export function begun(conversation, id, question, versions = runningIn(conversation)?.versions ?? []) {
  const text = typeof question === "string" ? withoutPictures(question) : null; // decisions about calls are no text
  remember(name(conversation), JSON.stringify({ id, question: text, versions }));
}

export function ended(conversation) {
  forget(name(conversation));
}
