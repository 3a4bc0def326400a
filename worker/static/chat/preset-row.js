// The row of the settings panel in which a preset is chosen, kept and deleted.

import { byId, el } from "../shared/dom.js";
import { composes } from "./keys.js";
import { forgetPreset, keepPreset, NAME_CHARS_MAX, presets } from "./presets.js";
import { UNSET } from "./settings.js";

// One that was kept before there was a setting has nothing set for it.
const same = (one, other) => Object.keys(UNSET).every((name) => (one[name] ?? null) === (other[name] ?? null));

export class PresetRow {
  /** `chosen()` gives the settings that the panel shows, `fill(settings)` shows others. */
  constructor({ chosen, fill }) {
    this.chosen = chosen;
    this.select = byId("preset");
    this.remove = byId("preset-delete");
    this.save = byId("preset-save");
    this.select.addEventListener("change", () => {
      const preset = this.selected;
      if (preset !== undefined) fill(preset.settings);
      this.show();
    });
    this.remove.addEventListener("click", () => {
      forgetPreset(this.select.value);
      this.show();
      this.select.focus();
    });
    this.save.addEventListener("click", () => this.name());
  }

  get selected() {
    return presets().find(({ name }) => name === this.select.value);
  }

  /** Select the preset that the panel shows, if it is one. */
  show() {
    const kept = presets();
    const settings = this.chosen();
    const current = kept.find((preset) => same(preset.settings, settings))?.name ?? "";
    const none = el("option", { value: "" }, kept.length === 0 ? "None yet" : "None");
    this.select.replaceChildren(none, ...kept.map(({ name }) => el("option", { value: name }, name)));
    this.select.value = current;
    this.select.disabled = kept.length === 0;
    this.remove.hidden = current === "";
    this.save.hidden = current !== "";
  }

  /** A field for the name takes the place of the button. */
  name() {
    const field = el("input", { type: "text", "aria-label": "Name of the preset", placeholder: "Name", maxlength: NAME_CHARS_MAX });
    let open = true;
    const close = (keep) => {
      if (!open) return;
      open = false; // taking the field away takes its focus away too
      const name = field.value.trim();
      field.replaceWith(this.save);
      if (keep && name !== "") keepPreset(name, this.chosen());
      this.show();
    };
    field.addEventListener("keydown", (event) => {
      if (composes(event) || (event.key !== "Enter" && event.key !== "Escape")) return;
      event.preventDefault(); // Enter would send the form, Escape close the dialog
      close(event.key === "Enter");
      this.select.focus();
    });
    field.addEventListener("blur", () => close(true));
    this.save.replaceWith(field);
    field.focus();
  }
}
