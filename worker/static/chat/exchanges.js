// The items of a conversation, grouped: each message of the user begins an exchange.

import { textOf } from "./attached.js";

/** Items, oldest first -> [{question, responseId, rated, versions, items}]. `question` is null for items before the first one, and
 *  `responseId` for what was added without a response; `versions` are the ids of the first item's. */
export function exchanges(items) {
  const list = [];
  for (const item of items) {
    const asks = item.type === "message" && item.role === "user";
    if (item.type === "message" && !asks && item.role !== "assistant") continue;
    const { responseId = null, items: before = [] } = list.at(-1) ?? {};
    const goesOn = asks && responseId !== null && responseId === item.firsttoken_response_id && before.every(isQuestion);
    if (goesOn) list.at(-1).question += `\n\n${textOf(item)}`; // said one after the other, and answered together
    else if (asks || list.length === 0) {
      const versions = item.firsttoken_versions ?? [item.id];
      list.push({ question: asks ? textOf(item) : null, responseId: null, rated: null, versions, items: [] });
    }
    list.at(-1).items.push(item);
    list.at(-1).responseId ??= item.firsttoken_response_id ?? null;
    list.at(-1).rated ??= item.firsttoken_feedback ?? null;
  }
  return list;
}

export const isQuestion = ({ type, role }) => type === "message" && role === "user";
