// Light or dark: the system's preference until the user chooses.

import { byId } from "./dom.js";
import { icon } from "./icons.js";
import { recall, remember, whenChangedElsewhere } from "./preferences.js";

const system = matchMedia("(prefers-color-scheme: dark)");

function current() {
  return recall("theme", system.matches ? "dark" : "light");
}

/** Make the button with this id switch between the themes. */
export function themeSwitch(id) {
  const button = byId(id);
  const show = () => {
    const dark = current() === "dark";
    const label = dark ? "Use the light theme" : "Use the dark theme";
    button.replaceChildren(icon(dark ? "sun" : "moon"));
    button.setAttribute("aria-label", label);
    button.title = label;
  };
  button.addEventListener("click", () => {
    const theme = current() === "dark" ? "light" : "dark";
    remember("theme", theme);
    document.documentElement.dataset.theme = theme;
    show();
  });
  system.addEventListener("change", show);
  whenChangedElsewhere((name) => {
    if (name !== "theme") return;
    document.documentElement.dataset.theme = current();
    show();
  });
  show();
}
