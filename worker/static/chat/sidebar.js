// The list of conversations, newest first and grouped by period: open, rename, delete.

import { byId, el } from "../shared/dom.js";
import { period } from "../shared/format.js";
import { icon } from "../shared/icons.js";
import { deleteConversation, listConversations, renameConversation } from "./conversations.js";

const UNTITLED = "Untitled";

export class Sidebar {
  /** Called back: `removed(id)` after a deletion, `failed(error)`; `running(id)` says whether an answer is running. */
  constructor({ removed, failed, running }) {
    this.removed = removed;
    this.failed = failed;
    this.running = running;
    this.list = byId("conversations");
    this.more = byId("older");
    this.conversations = [];
    this.current = null;
    this.more.addEventListener("click", () => this.load(this.conversations.at(-1)?.id ?? null));
  }

  async load(after = null) {
    try {
      const page = await listConversations(after);
      const known = new Set(page.data.map(({ id }) => id));
      this.conversations = [...this.conversations.filter(({ id }) => !known.has(id)), ...page.data];
      this.more.hidden = !page.has_more;
      this.show();
    } catch (error) {
      this.failed(error);
    }
  }

  /** A conversation with new activity moves to the top. */
  raise(conversation) {
    const fresh = { ...conversation, firsttoken_updated_at: Date.now() / 1000 };
    this.conversations = [fresh, ...this.conversations.filter(({ id }) => id !== fresh.id)];
    this.show();
  }

  raiseById(id) {
    const conversation = this.conversations.find((other) => other.id === id);
    if (conversation !== undefined) this.raise(conversation);
  }

  select(id) {
    this.current = id;
    this.show();
  }

  titleOf(id) {
    return this.conversations.find((conversation) => conversation.id === id)?.metadata.title ?? null;
  }

  show() {
    const nodes = [];
    let heading = null;
    for (const conversation of this.conversations) {
      const under = period(conversation.firsttoken_updated_at ?? conversation.created_at);
      if (under !== heading) nodes.push(el("li", { class: "period" }, under));
      heading = under;
      nodes.push(this.row(conversation));
    }
    if (nodes.length === 0) nodes.push(el("li", { class: "quiet" }, "Your conversations will appear here."));
    this.list.replaceChildren(...nodes);
  }

  row(conversation) {
    const title = conversation.metadata?.title || UNTITLED;
    const current = conversation.id === this.current;
    return el(
      "li",
      { class: "conversation", "data-id": conversation.id, "data-running": String(this.running(conversation.id)) },
      el("a", { href: `#/c/${conversation.id}`, title, "aria-current": current ? "page" : null }, title),
      action("pencil", `Rename “${title}”`, ({ target }) => this.rename(target.closest("li"), conversation)),
      action("trash", `Delete “${title}”`, () => this.confirmDelete(conversation, title)),
    );
  }

  rename(row, conversation) {
    const input = el("input", { "aria-label": "New title", maxlength: "200" });
    input.value = conversation.metadata?.title ?? "";
    let open = true;
    const close = async (save) => {
      if (!open) return;
      open = false;
      if (save && input.value.trim() !== "") await this.saveTitle(conversation, input.value);
      this.show();
      this.list.querySelector(`[data-id="${CSS.escape(conversation.id)}"] a`)?.focus();
    };
    input.addEventListener("blur", () => close(true));
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") close(true);
      if (event.key === "Escape") close(false);
    });
    row.replaceChildren(input);
    input.select();
  }

  async saveTitle(conversation, title) {
    try {
      const { metadata } = await renameConversation(conversation, title);
      conversation.metadata = metadata;
    } catch (error) {
      this.failed(error);
    }
  }

  confirmDelete(conversation, title) {
    const dialog = byId("confirm-delete");
    byId("confirm-delete-title").textContent = `“${title}” will be deleted permanently.`;
    dialog.returnValue = "";
    const closed = () => dialog.returnValue === "delete" && this.delete(conversation);
    dialog.addEventListener("close", closed, { once: true });
    dialog.showModal();
  }

  async delete({ id }) {
    try {
      await deleteConversation(id);
      this.conversations = this.conversations.filter((other) => other.id !== id);
      this.show();
      this.removed(id);
    } catch (error) {
      this.failed(error);
    }
  }
}

function action(name, label, click) {
  const attributes = { type: "button", class: "icon-button small", "aria-label": label, title: label, click };
  return el("button", attributes, icon(name));
}
