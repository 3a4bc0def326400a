// Sharing a conversation by a link, and taking it back.

import { json } from "../shared/api.js";
import { copyButton } from "../shared/copy.js";
import { byId, el } from "../shared/dom.js";
import { day } from "../shared/format.js";

const path = (id) => `/v1/conversations/${encodeURIComponent(id)}/share`;
const OFFER = "Anyone with the link can read the messages up to now, without signing in. "
  + "Sources, tool results and later messages stay private.";

export class ShareDialog {
  constructor() {
    this.dialog = byId("share");
    this.body = byId("share-body");
    byId("share-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
  }

  async open(conversation) {
    this.id = conversation.id;
    byId("share-title").textContent = conversation.metadata?.title ?? "";
    this.body.replaceChildren();
    this.dialog.showModal();
    await this.ask("GET");
  }

  /** GET looks, POST makes a new link, DELETE revokes it. */
  async ask(method) {
    const { id } = this;
    try {
      const share = await json(method, path(id));
      if (id === this.id) this.show(share);
    } catch (error) {
      this.body.replaceChildren(el("p", { class: "warning", role: "alert" }, error.message));
    }
  }

  show({ shared_at: at, path: made }) {
    if (at === null) return this.body.replaceChildren(el("p", {}, OFFER), row(this.button("Create a link", "POST", "primary")));
    const revoke = this.button("Revoke the link", "DELETE", "danger");
    if (made !== null) return this.body.replaceChildren(...link(new URL(made, location.href).href), row(revoke));
    const told = `Shared since ${day(at)}. The link was shown only when it was created. A new link replaces it.`;
    this.body.replaceChildren(el("p", {}, told), row(revoke, this.button("New link", "POST", "primary")));
  }

  button(label, method, kind) {
    return el("button", { type: "button", class: `button ${kind}`, click: () => this.ask(method) }, label);
  }
}

function row(...buttons) {
  return el("div", { class: "row" }, ...buttons);
}

function link(address) {
  const field = el("input", { type: "text", readonly: true, "aria-label": "Link", value: address });
  field.addEventListener("focus", () => field.select());
  return [
    el("div", { class: "share-link" }, field, copyButton(() => address, () => field, { class: "button" })),
    el("p", { class: "quiet" }, "Copy it now: it will not be shown again. Later messages are not shared."),
  ];
}
