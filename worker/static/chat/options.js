// What an answer may use: documents (which store) and tools. The choice is remembered.

import { json } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";
import { LookAgain } from "../shared/look-again.js";
import { recall, remember } from "../shared/preferences.js";

export class Options {
  constructor() {
    this.documents = byId("use-documents");
    this.reading = byId("reading");
    this.tools = byId("use-tools");
    this.select = byId("store");
    for (const button of [this.documents, this.tools]) {
      press(button, recall(button.id, "on") === "on");
      button.addEventListener("click", () => this.toggle(button));
    }
    this.stores = [];
    this.again = new LookAgain(() => this.load().catch(() => this.again.later())); // a worker that is begun again reads on
    this.chose = () => {};
    this.picked = () => {};
    this.select.addEventListener("change", () => this.pick(this.select.value));
  }

  /** `picked(id)` is called when the person picks a store: for this conversation, and for new ones. */
  onPick(picked) {
    this.picked = picked;
  }

  pick(id) {
    remember("store", id);
    this.select.value = id;
    this.picked(id);
    this.tell();
  }

  /** Show the store that a conversation uses; null for the usual one. */
  use(id) {
    const store = this.storeOf(id);
    if (store === undefined || store.id === this.select.value) return;
    this.select.value = store.id;
    this.tell();
  }

  /** One that is gone is not missed: the usual one takes its place, which is the last that was picked. */
  storeOf(id) {
    const find = (wanted) => this.stores.find((store) => store.id === wanted);
    return find(id) ?? find(recall("store", null)) ?? this.stores[0];
  }

  /** `chose(store)` is called with what `chosen` returns or null, now, whenever another store is chosen and while one is read. */
  onStore(chose) {
    this.chose = chose;
    chose(this.chosenStore);
  }

  get chosenStore() {
    return this.chosen(this.select.value).store;
  }

  toggle(button) {
    press(button, button.getAttribute("aria-pressed") !== "true");
    remember(button.id, pressed(button) ? "on" : "off");
    this.showSelect();
    this.tell();
  }

  /** Say which store is chosen now, and whether it is still being read: then answers know a part of it. */
  tell() {
    const store = this.chosenStore;
    const told = store?.left ? `The documents in ${store.name} are being read: ${store.left} to go.` : "";
    this.reading.hidden = told === "";
    if (this.reading.textContent !== told) this.reading.textContent = told; // it is read out
    if (store?.left) this.again.later();
    else this.again.stop();
    this.chose(store);
  }

  /** Ask which stores there are; without one, documents cannot be used. `picked` is used from now on. */
  async load(picked = null) {
    const { data } = await json("GET", "/v1/vector_stores");
    const shown = this.select.value;
    const named = (stores) => JSON.stringify(stores.map(({ id, name }) => [id, name]));
    const others = named(data) !== named(this.stores);
    this.stores = data;
    if (others) this.select.replaceChildren(...data.map(({ id, name }) => el("option", { value: id }, name || id)));
    this.documents.disabled = data.length === 0;
    this.documents.title = data.length === 0
      ? "No documents yet. Drag some onto this page to add them."
      : "Search the documents before answering and cite them";
    this.showSelect();
    this.select.value = this.storeOf(shown)?.id ?? "";
    if (picked === null) this.tell();
    else this.pick(picked);
  }

  showSelect() {
    this.select.hidden = this.select.length < 2 || !pressed(this.documents);
  }

  /** The store to keep with a conversation that begins: none where there is no choice. */
  get kept() {
    return this.stores.length > 1 ? this.chosenStore?.id ?? null : null;
  }

  /** {store: {id, name, threshold, left} or null, tools: bool} for a question; `id` is the store of its conversation, null for
   *  the usual one. Passages below the threshold are not about the question; `left` files are not read yet. */
  chosen(id) {
    const used = pressed(this.documents) && !this.documents.disabled;
    const store = used ? this.storeOf(id) : undefined;
    const chosen = store && { id: store.id, name: store.name || store.id, threshold: store.firsttoken_score_threshold, left: store.file_counts.in_progress };
    return { store: chosen ?? null, tools: pressed(this.tools) };
  }
}

function press(button, on) {
  button.setAttribute("aria-pressed", String(on));
}

function pressed(button) {
  return button.getAttribute("aria-pressed") === "true";
}
