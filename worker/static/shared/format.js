// Numbers and moments as people read them.

/** 0.42 ms, 7.3 ms, 412 ms, 3.41 s, 2 min 5 s. */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 99.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_995) return `${(ms / 1000).toFixed(2)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** A difference: +12.3 ms, −4.0 ms, and 0 for what would be shown as nothing. */
export function signed(ms) {
  if (Math.abs(ms) < 0.005) return "0";
  return `${ms < 0 ? "−" : "+"}${duration(Math.abs(ms))}`;
}

const MEASURED = /^(\S+) (\S+)$/;

/** From one difference to another, with the unit once where both have the same: −0.45 to +0.14 ms. */
export function signedRange(lowMs, highMs) {
  const [low, high] = [signed(lowMs), signed(highMs)];
  const [, number, unit] = MEASURED.exec(low) ?? [];
  return unit && MEASURED.exec(high)?.[2] === unit ? `${number} to ${high}` : `${low} to ${high}`;
}

export function count(number) {
  return number === null || number === undefined ? "–" : Number(number).toLocaleString("en-US");
}

export function share(part, whole) {
  if (!(whole > 0)) return "–";
  const percent = (100 * part) / whole;
  if (percent > 0 && percent < 1) return "<1%";
  return `${percent > 99 && percent < 100 ? Math.floor(percent * 10) / 10 : Math.round(percent)}%`; // 100% is all
}

/** Tokens per second from the milliseconds that one token takes. */
export function pace(tpotMs) {
  if (!(tpotMs > 0)) return null;
  const rate = 1000 / tpotMs;
  return `${rate < 10 ? rate.toFixed(1) : Math.round(rate)} tokens/s`;
}

/** A moment of today by its time, an older one by its date too. `seconds` since 1970. */
export function moment(seconds, now = new Date()) {
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString([], { timeStyle: "medium" });
  const today = date.toDateString() === now.toDateString();
  return today ? time : `${date.toLocaleDateString([], { month: "short", day: "numeric" })}, ${time}`;
}

/** The time of what is of today, the date of what is older. `seconds` since 1970. */
export function day(seconds, now = new Date()) {
  const date = new Date(seconds * 1000);
  if (date.toDateString() === now.toDateString()) return date.toLocaleTimeString([], { timeStyle: "short" });
  const year = date.getFullYear() === now.getFullYear() ? undefined : "numeric";
  return date.toLocaleDateString([], { year, month: "short", day: "numeric" });
}

/** Labels below an axis of time: the time of each moment, the date where a day begins. `seconds` since 1970, `step` apart. */
export function ticks(seconds, step) {
  let before = "";
  return seconds.map((each) => {
    const date = new Date(each * 1000);
    const named = date.toLocaleDateString([], { month: "short", day: "numeric" });
    if (step >= DAY_MS / 1000) return named;
    const time = date.toLocaleTimeString([], { timeStyle: step < 60 ? "medium" : "short" });
    const label = named === before ? time : `${time}\n${named}`;
    before = named;
    return label;
  });
}

const DAY_MS = 86_400_000;

/** The heading of the period in which a conversation was last active. */
export function period(seconds, now = new Date()) {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const then = seconds * 1000;
  if (then >= midnight) return "Today";
  if (then >= midnight - DAY_MS) return "Yesterday";
  if (then >= midnight - 7 * DAY_MS) return "Last 7 days";
  return "Earlier";
}
