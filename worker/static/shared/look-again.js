// Looking again at what changes by itself: later and later, and only while somebody sees the page.

const FIRST_MS = 1000;
const LAST_MS = 15_000; // many pages may wait for the same, and none of them is the reason for it
const GROWTH = 1.5;

export class LookAgain {
  constructor(look) {
    this.look = look;
    this.timer = null;
    this.waitMs = FIRST_MS;
    this.due = false; // the time came while nobody saw the page
    document.addEventListener("visibilitychange", () => this.due && this.act());
  }

  /** Once more, a little later than the last time. */
  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.act(), this.waitMs);
    this.waitMs = Math.min(this.waitMs * GROWTH, LAST_MS);
  }

  /** There is nothing to wait for; what comes next is looked at soon. */
  stop() {
    clearTimeout(this.timer);
    this.due = false;
    this.waitMs = FIRST_MS;
  }

  act() {
    this.due = document.hidden;
    if (!this.due) this.look();
  }
}
