// The list of conversations, the pinned ones first, then the newest, grouped by period: open, rename, pin, delete.

import { confirmDelete } from "../shared/confirm.js";
import { byId, el } from "../shared/dom.js";
import { period } from "../shared/format.js";
import { icon } from "../shared/icons.js";
import { conversationMenu } from "./conversation-menu.js";
import {
  deleteConversation, isPinned, listConversations, listPinned, nameOf, pinConversation, renameConversation,
} from "./conversations.js";
import { composes } from "./keys.js";

const UNTITLED = "Untitled";

export class Sidebar {
  /** Called back: `removed(id)` after a deletion, `failed(error)`, `share(conversation)`; `running(id)` says whether an
   *  answer is running. */
  constructor({ removed, failed, running, share }) {
    this.share = share;
    this.removed = removed;
    this.failed = failed;
    this.running = running;
    this.list = byId("conversations");
    this.more = byId("older");
    this.conversations = [];
    this.paged = []; // ids in the order of the pages that were loaded: the next page begins after the last of them
    this.current = null;
    this.renaming = false;
    this.frame = null;
    this.more.addEventListener("click", () => this.load(this.paged.at(-1) ?? null));
  }

  /** What came meanwhile, unless somebody is busy in the list. Raises what the worker says. */
  async refresh() {
    if (this.list.contains(document.activeElement)) return;
    await this.load(null, (error) => { throw error; });
  }

  async load(after = null, failed = this.failed) {
    try {
      const [page, pinned] = await Promise.all([listConversations(after), after === null ? listPinned() : { data: [] }]);
      const fresh = [...page.data, ...pinned.data];
      const known = new Set(fresh.map(({ id }) => id));
      const listed = new Set(after === null ? this.paged : []);
      const end = page.has_more ? activeAt(page.data.at(-1)) : 0;
      const isGone = (each) => listed.has(each.id) && each.id !== this.current && activeAt(each) > end; // deleted elsewhere
      const merged = [...this.conversations.filter((each) => !known.has(each.id) && !isGone(each)), ...fresh];
      this.paged = [...(after === null ? [] : this.paged), ...page.data.map(({ id }) => id)];
      this.conversations = [...new Map(merged.map((each) => [each.id, each])).values()].sort((a, b) => activeAt(b) - activeAt(a));
      this.more.hidden = !page.has_more;
      this.show();
    } catch (error) {
      if (after === null || error.status !== 400) return failed(error);
      this.paged = this.paged.filter((id) => id !== after); // it was deleted elsewhere
      await this.load(this.paged.at(-1) ?? null, failed);
    }
  }

  /** One that is not among those that were loaded, such as an old one that a link leads to. */
  add(conversation) {
    if (this.get(conversation.id) !== null) return;
    this.conversations = [...this.conversations, conversation].sort((a, b) => activeAt(b) - activeAt(a));
    this.show();
  }

  /** A conversation with new activity moves to the top. */
  raise(conversation) {
    const fresh = { ...conversation, firsttoken_updated_at: Date.now() / 1000 };
    this.leave(fresh.id);
    this.conversations = [fresh, ...this.conversations];
    this.show();
  }

  /** It is no longer where its page had it. */
  leave(id) {
    this.conversations = this.conversations.filter((other) => other.id !== id);
    this.paged = this.paged.filter((other) => other !== id);
  }

  raiseById(id) {
    const conversation = this.get(id);
    if (conversation !== null) this.raise(conversation);
  }

  select(id) {
    this.current = id;
    this.show();
  }

  get(id) {
    return this.conversations.find((conversation) => conversation.id === id) ?? null;
  }

  /** Take over what the worker keeps with one; the list may have another object of it by now. */
  update({ id, metadata }) {
    const conversation = this.get(id);
    if (conversation !== null) conversation.metadata = metadata;
  }

  titleOf(id) {
    return nameOf(this.get(id));
  }

  /** With the next frame, however often until then: what a question changes here must not delay it. */
  show() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  /** What has the focus keeps it, though it is another node. */
  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    if (this.renaming) return; // it is drawn when that is done
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    const nodes = [];
    let heading = null;
    const pinned = this.conversations.filter(isPinned);
    for (const conversation of [...pinned, ...this.conversations.filter((each) => !isPinned(each))]) {
      const under = isPinned(conversation) ? "Pinned" : period(activeAt(conversation));
      if (under !== heading) nodes.push(el("li", { class: "period" }, under));
      heading = under;
      nodes.push(this.row(conversation));
    }
    if (nodes.length === 0) nodes.push(el("li", { class: "quiet" }, "Your conversations will appear here."));
    this.list.replaceChildren(...nodes);
    if (focused === null) return;
    const row = this.rowOf(focused.closest(".conversation").dataset.id);
    const again = row?.querySelector(focused.localName === "button" ? "button" : "a") ?? byId("new");
    again.focus({ preventScroll: true });
  }

  rowOf(id) {
    return this.list.querySelector(`[data-id="${CSS.escape(id)}"]`);
  }

  row(conversation) {
    const title = nameOf(conversation) ?? UNTITLED;
    const current = conversation.id === this.current;
    return el(
      "li",
      { class: "conversation", "data-id": conversation.id, "data-running": String(this.running(conversation.id)) },
      el("a", { href: `#/c/${conversation.id}`, title, dir: "auto", "aria-current": current ? "page" : null }, title),
      action("more", `More about “${title}”`, ({ currentTarget }) => this.openMenu(currentTarget, conversation)),
    );
  }

  /** A title becomes a field in its place in the list; elsewhere there is none. */
  openMenu(anchor, conversation) {
    conversationMenu(anchor, conversation, {
      rename: anchor.closest(".conversation") && (() => this.rename(this.rowOf(conversation.id), conversation)),
      pin: (pinned) => this.pin(conversation, pinned),
      share: () => this.share(conversation),
      remove: () => this.delete(conversation),
    });
  }

  async pin(conversation, pinned) {
    try {
      this.update(await pinConversation(conversation, pinned));
      this.show();
    } catch (error) {
      this.failed(error);
    }
  }

  rename(row, conversation) {
    if (row === null) return; // it was deleted elsewhere
    const input = el("input", { "aria-label": "New title", maxlength: "200" });
    input.value = nameOf(conversation) ?? "";
    this.renaming = true;
    const close = async (save) => {
      if (!this.renaming) return;
      this.renaming = false;
      if (save && input.value.trim() !== "") await this.saveTitle(conversation, input.value);
      this.draw();
    };
    input.addEventListener("blur", () => close(true));
    input.addEventListener("keydown", (event) => {
      if (composes(event)) return;
      if (event.key === "Enter") close(true);
      if (event.key === "Escape") close(false);
    });
    row.replaceChildren(input);
    input.select();
  }

  async saveTitle(conversation, title) {
    try {
      this.update(await renameConversation(this.get(conversation.id) ?? conversation, title));
    } catch (error) {
      this.failed(error);
    }
  }

  async delete(conversation) {
    const { id } = conversation;
    const text = `“${nameOf(conversation) ?? UNTITLED}” will be deleted permanently.`;
    if (!(await confirmDelete("Delete this conversation?", text))) return;
    try {
      await deleteConversation(id);
      this.leave(id);
      this.show();
      this.removed(id);
    } catch (error) {
      this.failed(error);
    }
  }
}

function activeAt(conversation) {
  return conversation.firsttoken_updated_at ?? conversation.created_at;
}

function action(name, label, click) {
  const attributes = {
    type: "button", class: "icon-button small", "aria-label": label, "aria-haspopup": "menu", title: label, click,
  };
  return el("button", attributes, icon(name));
}
