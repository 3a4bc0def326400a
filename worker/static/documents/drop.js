// Files that are dragged onto the page or pasted into it.

import { byId } from "../shared/dom.js";

/** `take(files)` is called with what was dropped or pasted. */
export function listenToFiles(take) {
  const veil = byId("drop");
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => hasFiles(event) && (veil.hidden = false));
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("dragleave", (event) => event.relatedTarget === null && (veil.hidden = true));
  addEventListener("drop", (event) => {
    veil.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    take([...event.dataTransfer.files]);
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length === 0 || event.clipboardData.types.includes("text/plain")) return; // office programs add a picture
    event.preventDefault();
    take(files);
  });
}
