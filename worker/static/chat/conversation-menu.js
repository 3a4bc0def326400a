// What can be done with a conversation.

import { openMenu } from "../shared/menu.js";
import { exportAddress, isPinned } from "./conversations.js";

/** `does`: {rename, pin, share, remove}; where `rename` is null the menu does not offer it. */
export function conversationMenu(anchor, conversation, { rename, pin, share, remove }) {
  const pinned = isPinned(conversation);
  openMenu(anchor, [
    ...(rename === null ? [] : [{ image: "pencil", label: "Rename", act: rename }]),
    { image: "pin", label: pinned ? "Unpin" : "Pin", act: () => pin(!pinned) },
    { image: "share", label: "Share…", act: share },
    { image: "download", label: "Export as Markdown", href: exportAddress(conversation.id, "markdown") },
    { image: "download", label: "Export as JSON", href: exportAddress(conversation.id, "json") },
    { image: "trash", label: "Delete…", act: remove, danger: true },
  ]);
}
