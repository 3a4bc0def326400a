// The keyboard, wherever the focus is: Escape stops the answer, "/" goes to the question.

const COVERS = "dialog[open], :popover-open";

/** Whether a dialog or a menu is open, which takes Escape first. */
export function covered() {
  return document.querySelector(COVERS) !== null;
}

const PROCESSED = 229; // Safari ends the composition before the key that ended it, and marks that key only by its code

/** Whether the key belongs to an input method: Enter picks a word, Escape gives it up. */
export function composes(event) {
  return event.isComposing || event.keyCode === PROCESSED;
}

/** A dialog, a menu, the drawer and a field that takes Escape itself come first. */
export function listenToKeys({ stop, focus }) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || composes(event) || covered()) return;
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
