// What somebody has written and not sent, by conversation: it survives a reload and a closed browser.

import { recall, remember } from "../shared/preferences.js";

const DRAFTS_MAX = 20; // the oldest goes first
const DRAFT_CHARS_MAX = 50_000; // a browser keeps about five million for all of them together
const NAME = "drafts";

function all() {
  return new Map(JSON.parse(recall(NAME, "[]")));
}

/** `conversation` is null for one that has not begun. */
export function draftOf(conversation) {
  return all().get(conversation) ?? "";
}

export function keepDraft(conversation, text) {
  const drafts = all();
  drafts.delete(conversation);
  if (text !== "" && text.length <= DRAFT_CHARS_MAX) drafts.set(conversation, text);
  remember(NAME, JSON.stringify([...drafts].slice(-DRAFTS_MAX)));
}
