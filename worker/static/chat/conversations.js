// The conversations as the worker keeps them.

import { json, request } from "../shared/api.js";

const PAGE = 30; // conversations in the sidebar before "Older"
const ITEMS_PAGE = 100; // the most that one request may ask for
const ITEMS_MAX = 2000; // a transcript longer than this would make the page slow
const TITLE_CHARS_MAX = 80;
const RESULTS = "file_search_call.results"; // else the passages stay out

const path = (id, rest = "") => `/v1/conversations/${encodeURIComponent(id)}${rest}`;

/** {data: [{id, created_at, metadata}], has_more, last_id}, newest first. */
export function listConversations(after = null) {
  const query = new URLSearchParams({ limit: String(PAGE), ...(after === null ? {} : { after }) });
  return json("GET", `/v1/conversations?${query}`);
}

export function createConversation(question) {
  return json("POST", "/v1/conversations", { body: { metadata: { title: titleOf(question) } } });
}

export function renameConversation(conversation, title) {
  const metadata = { ...conversation.metadata, title: titleOf(title) };
  return json("POST", path(conversation.id), { body: { metadata } });
}

export async function deleteConversation(id) {
  await request("DELETE", path(id));
}

/** All items of a conversation, oldest first. */
export async function listItems(id) {
  const items = [];
  for (let after = null; items.length < ITEMS_MAX; ) {
    const query = new URLSearchParams({ order: "asc", limit: String(ITEMS_PAGE), "include[]": RESULTS });
    if (after !== null) query.set("after", after);
    const page = await json("GET", path(id, `/items?${query}`));
    items.push(...page.data);
    if (!page.has_more || page.data.length === 0) break;
    after = page.last_id;
  }
  return items;
}

export function titleOf(text) {
  const line = text.replace(/\s+/g, " ").trim();
  const characters = Array.from(line);
  return characters.length <= TITLE_CHARS_MAX ? line : `${characters.slice(0, TITLE_CHARS_MAX - 1).join("")}…`;
}
