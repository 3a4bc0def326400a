// Questions that the worker may not have, by conversation: from when they are sent until it has taken them. What fails on that
// way stays until it is asked again or deleted.

import { forget, recallJson, remember } from "../shared/preferences.js";
import { withoutPictures } from "./attached.js";

const name = (conversation) => `unsent.${conversation}`;

/** [{question, versions, times}], oldest first. `conversation` is null for one that has not begun. `versions` are the ids of those
 *  that it would stand beside, `times` is how often the worker had this question when it was sent; null if it is known not to have
 *  taken it. */
export function unsentIn(conversation) {
  const kept = recallJson(name(conversation), []);
  const entries = Array.isArray(kept) ? kept.filter((entry) => typeof entry?.question === "string") : [];
  return entries.map(({ question, versions, times }) => ({
    question, versions: Array.isArray(versions) ? versions : [], times: times ?? null,
  }));
}

/** Without its pictures, which are larger than what a browser keeps. */
export function keepUnsent(conversation, { question, versions = [], times = null }) {
  const text = withoutPictures(question);
  keep(conversation, [...others(conversation, text), { question: text, versions, times }]);
}

export function dropUnsent(conversation, question) {
  const left = others(conversation, withoutPictures(question));
  if (left.length === 0) forget(name(conversation));
  else keep(conversation, left);
}

function others(conversation, text) {
  return unsentIn(conversation).filter(({ question }) => question !== text);
}

function keep(conversation, entries) {
  remember(name(conversation), JSON.stringify(entries));
}
