// The conversations as the worker keeps them.

import { json, request } from "../shared/api.js";
import { taken } from "./attached.js";
import { withSettings } from "./settings.js";

const PAGE = 30; // conversations in the sidebar before "Older"
const ITEMS_PAGE = 100; // the most that one request may ask for
const NEWEST = 8; // items of two or three turns: as many as may come from elsewhere while one is answered here
const ITEMS_MAX = 2000; // a transcript longer than this would make the page slow
const TITLE_CHARS_MAX = 80;
const PINNED_MAX = 100; // shown; more are no help
// Without the first, passages stay out.
const INCLUDED = ["file_search_call.results", "firsttoken:response_id", "firsttoken:feedback", "firsttoken:versions"];

const path = (id, rest = "") => `/v1/conversations/${encodeURIComponent(id)}${rest}`;

/** {data: [{id, created_at, metadata}], has_more, last_id}, newest first. */
export function listConversations(after = null) {
  const query = new URLSearchParams({ limit: String(PAGE), ...(after === null ? {} : { after }) });
  return json("GET", `/v1/conversations?${query}`);
}

export function createConversation(question, settings) {
  const metadata = withSettings({ title: titleOf(question) }, settings);
  return json("POST", "/v1/conversations", { body: { metadata } });
}

export function getConversation(id) {
  return json("GET", path(id));
}

export function saveSettings(conversation, settings) {
  return json("POST", path(conversation.id), { body: { metadata: withSettings(conversation.metadata, settings) } });
}

export function renameConversation(conversation, title) {
  const metadata = { ...conversation.metadata, title: titleOf(title) };
  return json("POST", path(conversation.id), { body: { metadata } });
}

const PINNED = "firsttoken:pinned"; // in the metadata of a conversation

export function isPinned({ metadata }) {
  return metadata?.[PINNED] === "true";
}

/** The pinned ones, however old. */
export function listPinned() {
  return json("GET", `/v1/conversations?pinned=true&limit=${PINNED_MAX}`);
}

export function pinConversation(conversation, pinned) {
  const { [PINNED]: _, ...rest } = conversation.metadata ?? {};
  const metadata = pinned ? { ...rest, [PINNED]: "true" } : rest;
  return json("POST", path(conversation.id), { body: { metadata } });
}

/** {data} as of a list, each with its `firsttoken_excerpt`. */
export function searchConversations(text) {
  return json("GET", `/v1/conversations/search?${new URLSearchParams({ query: text })}`);
}

export function exportAddress(id, format) {
  return path(id, `/export?format=${format}`);
}

export async function deleteConversation(id) {
  await request("DELETE", path(id));
}

/** All items of a conversation, oldest first. */
export async function listItems(id) {
  const items = [];
  for (let after = null; items.length < ITEMS_MAX; ) {
    const query = new URLSearchParams({ order: "asc", limit: String(ITEMS_PAGE) });
    for (const name of INCLUDED) query.append("include[]", name);
    if (after !== null) query.set("after", after);
    const page = await json("GET", path(id, `/items?${query}`));
    items.push(...page.data);
    if (!page.has_more || page.data.length === 0) break;
    after = page.last_id;
  }
  return items;
}

/** The newest items of a conversation, newest first. */
export async function lastItems(id) {
  const query = new URLSearchParams({ order: "desc", limit: String(NEWEST), "include[]": "firsttoken:response_id" });
  return (await json("GET", path(id, `/items?${query}`))).data;
}

/** Delete the items of exchanges ({responseId, itemIds}), the newest first: what is left makes sense at any moment. */
export async function dropTurns(id, gone) {
  const responseIds = new Set(gone.map(({ responseId }) => responseId).filter((responseId) => responseId !== null));
  const itemIds = new Set(gone.flatMap((exchange) => exchange.itemIds));
  if (responseIds.size + itemIds.size === 0) return;
  for (const item of (await listItems(id)).filter(belongsTo(responseIds, itemIds)).reverse()) {
    await request("DELETE", path(id, `/items/${encodeURIComponent(item.id)}`));
  }
}

/** Go back to before an exchange, which stays as a version of what is asked next: the ids of the versions of its first
 *  item, oldest first; none when the worker has nothing of it. */
export async function goBack(id, { responseId, itemIds }) {
  const items = await listItems(id);
  const at = items.findIndex(belongsTo(new Set(responseId === null ? [] : [responseId]), new Set(itemIds)));
  if (at < 0) return [];
  await json("POST", path(id, "/branch"), { body: { after: items[at - 1]?.id ?? null } });
  return items[at].firsttoken_versions ?? [items[at].id];
}

/** Go on with the version that begins with this item. */
export async function chooseVersion(id, itemId) {
  await json("POST", path(id, "/branch"), { body: { item_id: itemId } });
}

function belongsTo(responseIds, itemIds) {
  return (item) => itemIds.has(item.id) || responseIds.has(item.firsttoken_response_id);
}

/** What a conversation is called; one that a program began, by its first question. Null where there is nothing yet. */
export function nameOf(conversation) {
  return conversation?.metadata?.title || titleOf(conversation?.firsttoken_beginning ?? "") || null;
}

export function titleOf(text) {
  const line = taken(text).question.replace(/\s+/g, " ").trim();
  const characters = Array.from(line);
  return characters.length <= TITLE_CHARS_MAX ? line : `${characters.slice(0, TITLE_CHARS_MAX - 1).join("")}…`;
}
