// A menu that opens beside the button that was pressed.

import { el } from "./dom.js";
import { icon } from "./icons.js";

const EDGE_PX = 8; // what stays free at the edges of the window

/** `entries`: [{image, label, act}] or [{image, label, href}] for what is downloaded; `danger` for what cannot be undone. */
export function openMenu(anchor, entries) {
  const menu = el("div", { class: "menu", role: "menu", popover: "auto" }, ...entries.map((entry) => item(entry)));
  menu.addEventListener("toggle", ({ newState }) => {
    anchor.setAttribute("aria-expanded", String(newState === "open"));
    if (newState === "closed") menu.remove();
  });
  // Before the entry acts: what it opens takes the focus then.
  menu.addEventListener("click", () => {
    menu.hidePopover();
    anchor.focus({ preventScroll: true });
  }, { capture: true });
  menu.addEventListener("keydown", (event) => move(menu, event));
  (anchor.closest("aside, main") ?? document.body).append(menu); // a landmark, for who finds their way by those
  menu.showPopover();
  place(menu, anchor.getBoundingClientRect());
  menu.querySelector("[role=menuitem]").focus({ preventScroll: true });
}

function item({ image, label, act, href, danger = false }) {
  const attributes = { role: "menuitem", tabindex: "-1", class: danger ? "danger" : null };
  if (href !== undefined) return el("a", { ...attributes, href, download: true }, icon(image), label);
  return el("button", { ...attributes, type: "button", click: act }, icon(image), label);
}

function place(menu, { left, top, bottom }) {
  const { offsetWidth: width, offsetHeight: height } = menu;
  const below = bottom + height + EDGE_PX <= innerHeight;
  menu.style.left = `${Math.max(EDGE_PX, Math.min(left, innerWidth - width - EDGE_PX))}px`;
  menu.style.top = `${Math.max(EDGE_PX, below ? bottom + 4 : top - height - 4)}px`;
}

function move(menu, event) {
  const items = [...menu.querySelectorAll("[role=menuitem]")];
  const at = items.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  items.at(to % items.length).focus();
}
