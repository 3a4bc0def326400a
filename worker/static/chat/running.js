// Questions that wait for their answer, by conversation: what a page needs to go on after it was loaded again.

import { withoutPictures } from "./attached.js";
import { forget, recallJson, remember } from "../shared/preferences.js";

const name = (conversation) => `running.${conversation}`;

/** {id, question, versions, said} of the answer that this conversation waits for, or null; `id` is null until the worker
 *  took it, `versions` are the ids of those that it stands beside, and `said` is what was said to it, or null. */
export function runningIn(conversation) {
  const noted = recallJson(name(conversation), null);
  return typeof noted?.question === "string" ? { said: null, ...noted } : null;
}

/** Without its pictures, which are larger than what a browser keeps. Without `versions` it is the one that was noted before,
 *  whose versions and what was said to it stay. */
export function begun(conversation, id, question, versions = null) {
  const text = typeof question === "string" ? withoutPictures(question) : null; // decisions about calls are no text
  const before = versions === null ? runningIn(conversation) : null;
  note(conversation, { id, question: text, versions: versions ?? before?.versions ?? [], said: before?.said ?? null });
}

/** All that was said to the answer so far. */
export function heard(conversation, said) {
  const running = runningIn(conversation);
  if (running !== null) note(conversation, { ...running, said: withoutPictures(said) });
}

export function ended(conversation) {
  forget(name(conversation));
}

function note(conversation, running) {
  remember(name(conversation), JSON.stringify(running));
}
