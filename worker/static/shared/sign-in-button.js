// Leads to the page that says how to sign in; the address stays, and with it what was open.

import { el } from "./dom.js";

export function signInButton() {
  return el("button", { type: "button", class: "button", click: () => location.reload() }, "Sign in");
}
