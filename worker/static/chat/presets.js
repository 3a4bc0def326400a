// Settings that somebody has given a name, to choose again: kept by this browser.

import { recallJson, remember } from "../shared/preferences.js";

const NAME = "presets";
const PRESETS_MAX = 50; // more are no help in a list
export const NAME_CHARS_MAX = 60;

/** [{name, settings}] by name. */
export function presets() {
  const kept = recallJson(NAME, []);
  return Array.isArray(kept) ? kept : []; // of another version
}

/** In the place of one of the same name. */
export function keepPreset(name, settings) {
  const others = presets().filter((preset) => preset.name !== name);
  const all = [...others, { name, settings }].slice(-PRESETS_MAX);
  remember(NAME, JSON.stringify(all.sort((a, b) => a.name.localeCompare(b.name))));
}

export function forgetPreset(name) {
  remember(NAME, JSON.stringify(presets().filter((preset) => preset.name !== name)));
}
