// What an answer may use: documents (which store) and tools. The choice is remembered.

import { json } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";
import { recall, remember } from "../shared/preferences.js";

export class Options {
  constructor() {
    this.documents = byId("use-documents");
    this.tools = byId("use-tools");
    this.select = byId("store");
    for (const button of [this.documents, this.tools]) {
      press(button, recall(button.id, "on") === "on");
      button.addEventListener("click", () => this.toggle(button));
    }
    this.stores = [];
    this.chose = () => {};
    this.select.addEventListener("change", () => {
      remember("store", this.select.value);
      this.chose(this.chosenStore);
    });
  }

  /** `chose(store)` is called with {id, name, threshold} or null, now and whenever another store is chosen. */
  onStore(chose) {
    this.chose = chose;
    chose(this.chosenStore);
  }

  get chosenStore() {
    return this.chosen.store;
  }

  toggle(button) {
    press(button, button.getAttribute("aria-pressed") !== "true");
    remember(button.id, pressed(button) ? "on" : "off");
    this.showSelect();
    this.chose(this.chosenStore);
  }

  /** Ask which stores there are; without one, documents cannot be used. `chosen` is used from now on. */
  async load(chosen = null) {
    if (chosen !== null) remember("store", chosen);
    const { data } = await json("GET", "/v1/vector_stores");
    this.stores = data;
    this.select.replaceChildren(...data.map(({ id, name }) => el("option", { value: id }, name || id)));
    const remembered = recall("store", null);
    if (data.some(({ id }) => id === remembered)) this.select.value = remembered;
    this.documents.disabled = data.length === 0;
    this.documents.title = data.length === 0
      ? "There are no documents yet. Add some: drag them onto this page"
      : "Search the documents before answering, and cite them";
    this.showSelect();
    this.chose(this.chosenStore);
  }

  showSelect() {
    this.select.hidden = this.select.length < 2 || !pressed(this.documents);
  }

  /** {store: {id, name, threshold} or null, tools: bool} for the next question. Passages below the threshold are not about it. */
  get chosen() {
    const used = pressed(this.documents) && !this.documents.disabled;
    const store = used ? this.stores.find(({ id }) => id === this.select.value) : undefined;
    const chosen = store && { id: store.id, name: store.name || store.id, threshold: store.firsttoken_score_threshold };
    return { store: chosen ?? null, tools: pressed(this.tools) };
  }
}

function press(button, on) {
  button.setAttribute("aria-pressed", String(on));
}

function pressed(button) {
  return button.getAttribute("aria-pressed") === "true";
}
