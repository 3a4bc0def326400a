// What this browser remembers, for all its tabs. Storage can be full or forbidden: then a choice lasts as long as the page.

const PREFIX = "firsttoken.";
const memory = new Map(); // only what storage did not take: another tab may have changed the rest
let leaving = false;

export function recall(name, fallback) {
  if (memory.has(name)) return memory.get(name);
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? fallback : text;
  } catch {
    return fallback;
  }
}

/** The same for what is kept as JSON. Another version, or a hand, may have written something else there. */
export function recallJson(name, fallback) {
  try {
    return JSON.parse(recall(name, "null")) ?? fallback;
  } catch {
    return fallback;
  }
}

export function remember(name, text) {
  if (leaving) return;
  try {
    localStorage.setItem(PREFIX + name, text);
    memory.delete(name);
  } catch {
    memory.set(name, text);
  }
}

export function forget(name) {
  memory.delete(name);
  try {
    localStorage.removeItem(PREFIX + name);
  } catch {
    // nothing was stored there
  }
}

/** Forget all but these, and take nothing more, as the page is about to go: it would keep what is typed. */
export function forgetAllBut(names) {
  leaving = true;
  memory.clear();
  try {
    const kept = new Set(names.map((name) => PREFIX + name));
    for (const key of Object.keys(localStorage)) if (key.startsWith(PREFIX) && !kept.has(key)) localStorage.removeItem(key);
  } catch {
    // nothing was stored there
  }
}

/** `changed(name)` is called when another tab has changed what is remembered. */
export function whenChangedElsewhere(changed) {
  addEventListener("storage", ({ key }) => {
    if (key?.startsWith(PREFIX)) changed(key.slice(PREFIX.length));
  });
}
