// What this browser remembers. Storage can be full or forbidden: then a choice lasts as long as the page.

const PREFIX = "firsttoken.";
const memory = new Map();

export function recall(name, fallback) {
  if (memory.has(name)) return memory.get(name);
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? fallback : text;
  } catch {
    return fallback;
  }
}

export function remember(name, text) {
  memory.set(name, text);
  try {
    localStorage.setItem(PREFIX + name, text);
  } catch {
    // kept in memory above
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
