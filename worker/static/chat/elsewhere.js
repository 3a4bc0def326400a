// What the same person does in other tabs and browsers: the page looks when somebody comes back to it, and now and then
// while it is seen.

const EVERY_MS = 15_000; // one short question to the worker
const PAUSE_MS = 1000; // a page that is come back to tells so twice

/** `look()` is never called while it still runs, and may fail: it is called again. */
export function watchElsewhere(look) {
  let looking = false;
  let lookedAt = Date.now();
  const again = async () => {
    if (looking || document.hidden || Date.now() - lookedAt < PAUSE_MS) return;
    looking = true;
    await look().catch(() => {}); // without a worker the page says so when something is asked
    looking = false;
    lookedAt = Date.now();
  };
  document.addEventListener("visibilitychange", again);
  addEventListener("focus", again);
  addEventListener("storage", again); // another tab of this browser has begun or ended an answer
  setInterval(again, EVERY_MS);
}
