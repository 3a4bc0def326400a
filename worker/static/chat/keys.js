// The keyboard, wherever the focus is: Escape stops the answer, "/" goes to the question.

const COVERS = "dialog[open], :popover-open";

/** A dialog, a menu, the drawer and a field that takes Escape itself come first. */
export function listenToKeys({ stop, focus }) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector(COVERS) !== null) return;
    if (event.key === "Escape" && document.body.dataset.drawer !== "open" && !isRename(event.target)) stop();
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || writes(event.target)) return;
    event.preventDefault();
    focus();
  });
}

function writes({ localName }) {
  return localName === "input" || localName === "textarea" || localName === "select";
}

function isRename({ localName }) {
  return localName === "input";
}
