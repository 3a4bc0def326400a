// Answers that are being made, by conversation: what a page needs to go on after it was loaded again.

import { withoutPictures } from "./attached.js";
import { forget, recallJson, remember } from "../shared/preferences.js";

const name = (conversation) => `running.${conversation}`;

/** {id, question, versions, said} of the answer that this conversation waits for, or null; `versions` are the ids of those that
 *  it stands beside, and `said` is what was said to it, or null. */
export function runningIn(conversation) {
  const noted = recallJson(name(conversation), null);
  return typeof noted?.question === "string" && typeof noted.id === "string" ? { said: null, ...noted } : null;
}

/** Without its pictures, which are larger than what a browser keeps. What was said to it stays. */
export function begun(conversation, id, question, versions) {
  const before = runningIn(conversation);
  const said = before?.id === id ? before.said : null;
  note(conversation, { id, question: withoutPictures(question), versions, said });
}

/** All that was said to the answer so far. */
export function heard(conversation, said) {
  const running = runningIn(conversation);
  if (running !== null) note(conversation, { ...running, said: withoutPictures(said) });
}

/** Another page may wait for another one by now. */
export function ended(conversation, id) {
  if (runningIn(conversation)?.id === id) forget(name(conversation));
}

function note(conversation, running) {
  remember(name(conversation), JSON.stringify(running));
}
