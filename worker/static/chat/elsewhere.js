// What the same person does in other tabs and browsers: the page looks when somebody comes back to it, and now and then
// while it is seen.

import { whenChangedElsewhere } from "../shared/preferences.js";

const EVERY_MS = 15_000; // one short question to the worker
const PAUSE_MS = 1000; // a page that is come back to tells so twice

/** `look()` is never called while it still runs, and may fail: it is called again. `signedOut(error)` is told once; from then
 *  on the page looks only when somebody comes back to it, for they may have signed in again. */
export function watchElsewhere(look, signedOut) {
  let looking = false;
  let lookedAt = Date.now();
  let out = false;
  const again = async () => {
    if (looking || document.hidden || Date.now() - lookedAt < PAUSE_MS) return;
    looking = true;
    try {
      await look();
      out = false;
    } catch (error) {
      // without a worker the page says so when something is asked
      if (error.status === 401 && !out) signedOut(error);
      out ||= error.status === 401;
    }
    looking = false;
    lookedAt = Date.now();
  };
  document.addEventListener("visibilitychange", again);
  addEventListener("focus", again);
  whenChangedElsewhere((name) => name.startsWith("running.") && again()); // an answer has begun or ended
  setInterval(() => !out && again(), EVERY_MS);
}
