// Asking once more before something is deleted for good.

import { byId } from "./dom.js";

/** Whether the person said yes. */
export function confirmDelete(heading, text) {
  const dialog = byId("confirm-delete");
  byId("confirm-delete-heading").textContent = heading;
  byId("confirm-delete-title").textContent = text;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "delete"), { once: true });
  });
}
