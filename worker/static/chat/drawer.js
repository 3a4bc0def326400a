// On a phone, however it is held, the sidebar is a drawer over the page.

import { byId } from "../shared/dom.js";
import { covered } from "./keys.js";

const phone = matchMedia("(max-width: 52rem), (max-height: 30rem)");

export class Drawer {
  constructor() {
    this.sidebar = byId("sidebar");
    this.opener = byId("open-sidebar");
    this.scrim = byId("scrim");
    this.opener.addEventListener("click", () => this.set(true));
    this.scrim.addEventListener("click", () => this.set(false));
    byId("close-sidebar").addEventListener("click", () => this.set(false));
    document.addEventListener("keydown", (event) => event.key === "Escape" && !covered() && this.set(false));
    phone.addEventListener("change", () => this.set(false));
    this.set(false);
  }

  get isOpen() {
    return document.body.dataset.drawer === "open";
  }

  set(open) {
    const moved = open !== this.isOpen;
    document.body.dataset.drawer = open ? "open" : "closed";
    this.opener.setAttribute("aria-expanded", String(open));
    this.scrim.hidden = !open;
    this.sidebar.inert = phone.matches && !open;
    if (moved && phone.matches) (open ? byId("close-sidebar") : this.opener).focus({ preventScroll: true });
  }
}
