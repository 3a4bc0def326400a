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
    this.select.addEventListener("change", () => remember("store", this.select.value));
  }

  toggle(button) {
    press(button, button.getAttribute("aria-pressed") !== "true");
    remember(button.id, pressed(button) ? "on" : "off");
    this.showSelect();
  }

  /** Ask which stores there are; without one, documents cannot be used. */
  async load() {
    const { data } = await json("GET", "/v1/vector_stores");
    this.select.replaceChildren(...data.map(({ id, name }) => el("option", { value: id }, name || id)));
    const remembered = recall("store", null);
    if (data.some(({ id }) => id === remembered)) this.select.value = remembered;
    this.documents.disabled = data.length === 0;
    this.documents.title = data.length === 0
      ? "There are no documents yet. Add some with: firsttoken ingest PATH --store NAME"
      : "Search the documents before answering, and cite them";
    this.showSelect();
  }

  showSelect() {
    this.select.hidden = this.select.length < 2 || !pressed(this.documents);
  }

  /** {store: id or null, tools: bool} for the next question. */
  get chosen() {
    const store = pressed(this.documents) && !this.documents.disabled ? this.select.value || null : null;
    return { store, tools: pressed(this.tools) };
  }
}

function press(button, on) {
  button.setAttribute("aria-pressed", String(on));
}

function pressed(button) {
  return button.getAttribute("aria-pressed") === "true";
}
