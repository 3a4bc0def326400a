// What the page shows, kept in its address: a reload, a link and the Back button find it again.

import { NAMES } from "./dimensions.js";

const DEFAULTS = {
  window: "3600", start: "", end: "", ...Object.fromEntries(NAMES.map((name) => [name, ""])),
  chart: "first-token", order: "recent", q: "", at: "", against: "", of: "p50",
};

export function read() {
  const given = new URLSearchParams(location.search);
  return Object.fromEntries(Object.entries(DEFAULTS).map(([name, usual]) => [name, given.get(name) ?? usual]));
}

/** `moves`: whether Back returns to what was shown before. */
export function write(state, moves = false) {
  const changed = Object.entries(state).filter(([name, value]) => name in DEFAULTS && value !== DEFAULTS[name]);
  const query = new URLSearchParams(changed).toString();
  const address = `${location.pathname}${query && `?${query}`}${location.hash}`;
  if (moves) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

/** The query of summary and series. */
export function windowQuery(state) {
  const given = state.start ? { start: state.start, end: state.end } : { window_s: state.window };
  for (const name of NAMES) if (state[name]) given[name] = state[name];
  return new URLSearchParams(given);
}

/** The query of the list: within the window, or within the one step that was clicked. */
export function listQuery(state, limit) {
  const given = windowQuery(state);
  if (state.at) {
    const [start, end] = state.at.split("-");
    given.delete("window_s");
    given.set("start", start);
    given.set("end", end);
  }
  if (state.q) given.set("q", state.q);
  given.set("order", state.order);
  given.set("limit", String(limit));
  return given;
}
