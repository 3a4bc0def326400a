// What somebody has written and not sent, by conversation: it survives a reload and a closed browser.

import { recallJson, remember } from "../shared/preferences.js";
import { taken, withoutPictures } from "./attached.js";

const DRAFTS_MAX = 20; // the oldest goes first
const DRAFT_CHARS_MAX = 100_000; // a browser keeps about five million for all of them together
const NAME = "drafts";

function all() {
  const kept = recallJson(NAME, []);
  const isDraft = (entry) => Array.isArray(entry) && typeof entry[1] === "string";
  return new Map(Array.isArray(kept) ? kept.filter(isDraft) : []);
}

/** A question with its files; `conversation` is null for one that has not begun. */
export function draftOf(conversation) {
  return all().get(conversation) ?? "";
}

/** Pictures are not kept; of one that is too long with its files, the question alone is. */
export function keepDraft(conversation, text) {
  const drafts = all();
  const small = withoutPictures(text);
  const kept = small.length <= DRAFT_CHARS_MAX ? small : taken(text).question;
  drafts.delete(conversation);
  if (kept !== "" && kept.length <= DRAFT_CHARS_MAX) drafts.set(conversation, kept);
  remember(NAME, JSON.stringify([...drafts].slice(-DRAFTS_MAX)));
}
