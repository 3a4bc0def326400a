// A conversation out of a file: one that was exported here, or a list of messages as programs keep them.

import { json } from "../shared/api.js";
import { titleOf } from "./conversations.js";

const BYTES_MAX = 8_000_000; // a long conversation has some hundred kilobytes
const AT_ONCE = 20; // items that the worker takes in one request
const ROLES = { user: "input_text", assistant: "output_text" };

/** The new conversation. Raises an Error that says what is wrong with the file. */
export async function importConversation(file) {
  if (file.size > BYTES_MAX) throw new Error(`“${file.name}” is too large: a conversation has at most ${BYTES_MAX / 1e6} MB.`);
  const { title, messages } = conversationIn(parsed(await file.text(), file.name), file.name);
  const items = messages.map(({ role, text }) => ({ type: "message", role, content: [{ type: ROLES[role], text }] }));
  const metadata = { title: titleOf(title ?? messages[0].text) };
  const conversation = await json("POST", "/v1/conversations", { body: { metadata, items: items.slice(0, AT_ONCE) } });
  for (let at = AT_ONCE; at < items.length; at += AT_ONCE) {
    await json("POST", `/v1/conversations/${encodeURIComponent(conversation.id)}/items`, { body: { items: items.slice(at, at + AT_ONCE) } });
  }
  return conversation;
}

function parsed(text, name) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`“${name}” is not JSON. Export a conversation as JSON to get a file that can be imported.`);
  }
}

/** {title, messages: [{role, text}]} of a value, which may be anything. */
function conversationIn(value, name) {
  const list = [value, value?.items, value?.messages].find(Array.isArray) ?? [];
  const messages = list.map(messageOf).filter((message) => message !== null);
  if (messages.length === 0) throw new Error(`“${name}” has no messages of a user or an assistant.`);
  const title = value?.metadata?.title ?? value?.title;
  return { title: typeof title === "string" && title.trim() !== "" ? title : null, messages };
}

function messageOf(item) {
  const { role, content } = item ?? {};
  const parts = typeof content === "string" ? [content] : Array.isArray(content) ? content.map((part) => part?.text) : [];
  const text = parts.filter((part) => typeof part === "string").join("\n");
  return role in ROLES && text.trim() !== "" ? { role, text } : null;
}
