// The settings of the conversation that is shown.

import { json } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";
import { PresetRow } from "./preset-row.js";
import { INSTRUCTIONS_CHARS_MAX, isUnset, UNSET } from "./settings.js";

export class SettingsPanel {
  /** `changed(settings)` is called when the person is done and something is different; `stores()` are those to choose from. */
  constructor({ changed, stores }) {
    this.changed = changed;
    this.stores = stores;
    this.dialog = byId("settings");
    this.button = byId("open-settings");
    this.form = byId("settings-form");
    this.fields = this.form.elements;
    this.fields.instructions.maxLength = INSTRUCTIONS_CHARS_MAX;
    this.presets = new PresetRow({ chosen: () => this.chosen, fill: (settings) => this.fill(settings) });
    this.button.addEventListener("click", () => this.open());
    byId("settings-close").addEventListener("click", () => this.dialog.close());
    byId("settings-reset").addEventListener("click", () => this.form.reset());
    this.form.addEventListener("input", ({ target }) => target.name && this.say());
    this.form.addEventListener("reset", () => queueMicrotask(() => this.say()));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.dialog.close();
    });
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("close", () => this.done());
  }

  /** Mark the button of a conversation whose answers are made in another way than usual. */
  show(settings) {
    this.settings = settings;
    this.button.dataset.set = String(!isUnset(settings));
    this.button.title = isUnset(settings) ? "Settings" : "Settings (changed)";
  }

  async open() {
    const stores = this.stores();
    this.fields.store.replaceChildren(option("", "Last used"), ...stores.map(({ id, name }) => option(id, name || id)));
    this.fields.store.closest("label").hidden = stores.length < 2;
    this.fill(this.settings);
    this.dialog.showModal();
    try {
      const { data } = await json("GET", "/v1/models");
      const own = ({ id, root = id, capabilities = ["chat"] }) => root === id && capabilities.includes("chat");
      const [usual, ...others] = data.filter(own);
      const named = others.map(({ id, firsttoken_agent: isAgent }) => option(id, isAgent ? `Agent: ${id}` : id));
      this.fields.model.replaceChildren(option("", usual.id), ...named);
      this.fields.model.value = this.settings.model ?? "";
    } catch {
      // the list stays as it is: everything else can be set all the same
    }
  }

  fill(settings) {
    const { model, instructions, store, temperature, topP, maxTokens, effort, servers } = { ...UNSET, ...settings };
    const { fields } = this;
    if (model !== null && ![...fields.model.options].some(({ value }) => value === model)) fields.model.append(option(model, model));
    fields.store.value = [...fields.store.options].some(({ value }) => value === store) ? store : "";
    fields.topP.value = String(topP ?? fields.topP.min);
    fields.model.value = model ?? "";
    fields.instructions.value = instructions ?? "";
    fields.temperature.value = String(temperature ?? fields.temperature.min);
    fields.maxTokens.value = maxTokens === null ? "" : String(maxTokens);
    fields.effort.value = effort ?? "";
    fields.servers.value = servers ?? "";
    this.say();
  }

  say() {
    const { temperature, topP, instructions } = this.fields;
    const { length } = instructions.value;
    tell(temperature, "settings-temperature", { 0: "0, repeatable" });
    tell(topP, "settings-top-p", { 1: "1, all tokens" });
    byId("settings-left").textContent = length === 0 ? "" : `${length} of ${INSTRUCTIONS_CHARS_MAX}`;
    this.presets.show();
  }

  get chosen() {
    const { model, instructions, store, temperature, topP, maxTokens, effort, servers } = this.fields;
    const tokens = Math.floor(maxTokens.valueAsNumber);
    return {
      model: model.value || null,
      instructions: instructions.value.trim() || null,
      store: store.value || null,
      temperature: chosenIn(temperature),
      topP: chosenIn(topP),
      maxTokens: tokens >= 1 ? tokens : null,
      effort: effort.value || null,
      servers: servers.value.trim() || null,
    };
  }

  done() {
    const { chosen } = this;
    if (JSON.stringify(chosen) !== JSON.stringify({ ...chosen, ...this.settings })) this.changed(chosen);
  }
}

/** The lowest position of a slider leaves the choice to the model. */
function chosenIn({ value, min }) {
  return Number(value) === Number(min) ? null : Number(value);
}

function tell(slider, id, meanings) {
  const chosen = chosenIn(slider);
  const text = chosen === null ? "model default" : meanings[chosen] ?? slider.value;
  byId(id).textContent = text;
  slider.setAttribute("aria-valuetext", text);
}

function option(value, text) {
  return el("option", { value }, text);
}
