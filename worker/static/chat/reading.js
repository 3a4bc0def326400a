// Reading one response to its end, over as many connections as that takes.

import { ApiError, request } from "../shared/api.js";
import { inputOf } from "./attached.js";
import { ConnectionLost, events } from "./sse.js";

// The worker keeps generating without a reader a little longer than all these delays together.
const PAUSES_MS = [250, 1000, 2000, 4000, 4000, 4000, 4000, 8000]; // a worker is back within 20 seconds on a busy machine
const GRACE_S = 30;
// Tried without end while the browser takes itself for offline: a worker on the same machine may be there all the same.
const OFFLINE_MS = 4000;

// A worker that has to load a large model first may say nothing for most of it.
const SILENT_MS = 60_000;
const UPLOAD_BYTES_PER_MS = 10; // of a phone with a bad connection
const UNHEARD = "The worker does not answer. Try again: a question that has arrived is not asked twice.";

const path = (id, rest = "") => `/v1/responses/${encodeURIComponent(id)}${rest}`;

export class Reading {
  /** `reconnecting()` is called when a connection is lost and another one is tried. */
  constructor({ signal, reconnecting }, id = null) {
    this.signal = signal;
    this.reconnecting = reconnecting;
    this.id = id;
    this.seen = -1;
    this.lost = 0;
  }

  /** Every event once, in order, beginning with those of `response`. Raises ApiError when no connection is found. */
  async *events(response) {
    for (;;) {
      try {
        for await (const event of events(response.body)) {
          this.id ??= event.response?.id ?? null;
          this.seen = event.sequence_number;
          this.lost = 0;
          yield event;
        }
        return;
      } catch (error) {
        if (!(error instanceof ConnectionLost)) throw error;
      }
      response = await this.connectAgain();
    }
  }

  /** The events that were not seen yet. */
  connect() {
    const after = this.seen < 0 ? "" : `&starting_after=${this.seen}`;
    return request("GET", path(this.id, `?stream=true${after}`), { signal: this.signal });
  }

  async connectAgain() {
    while (this.id !== null && this.lost < PAUSES_MS.length) {
      this.reconnecting();
      await pause(navigator.onLine ? PAUSES_MS[this.lost++] : OFFLINE_MS, this.signal);
      try {
        return await this.connect();
      } catch (error) {
        if (!(error instanceof ApiError) || error.status === 401) throw error; // who signs in again finds the answer
        if (error.status !== 0 && error.status < 500 && error.status !== 429) break;
      }
    }
    throw new ApiError(0, "The connection was lost before the answer was complete.");
  }
}

export const IN_USE = "idempotency_key_in_use"; // it has arrived, and is on its way to be answered

/** A request that may be sent again: the worker then answers it once. */
export function once(body) {
  return { body, key: crypto.getRandomValues(new Uint32Array(4)).join("-") };
}

/** The stream of a new response. One that `signal` stops before the worker has told of it is stopped once it has: it would go
 *  on, and nobody could stop it any more. Raises ApiError, also where nothing is heard. */
export async function begin({ body, key }, signal) {
  signal.throwIfAborted();
  const connection = new AbortController();
  const headers = { "X-Firsttoken-On-Disconnect": String(GRACE_S), "Idempotency-Key": key };
  const asked = request("POST", "/v1/responses", { body, signal: connection.signal, headers });
  let told = false;
  let silence;
  const stopped = new Promise((_, reject) => {
    signal.addEventListener("abort", () => {
      if (told) connection.abort();
      else stopFirst(asked).catch(() => {}); // it was refused: there is nothing to stop
      reject(signal.reason);
    });
    silence = setTimeout(() => {
      connection.abort();
      reject(new ApiError(0, UNHEARD));
    }, SILENT_MS + JSON.stringify(body).length / UPLOAD_BYTES_PER_MS);
  });
  try {
    return await Promise.race([asked, stopped]);
  } finally {
    told = true;
    clearTimeout(silence);
  }
}

/** Its first event names it. */
async function stopFirst(asked) {
  for await (const { response } of events((await asked).body)) return stop(response.id);
}

/** {status, …} of a response. Raises ApiError. */
export async function lookAt(id) {
  return (await request("GET", path(id))).json();
}

/** Stop a response and keep its text. The next read of the conversation shows whether that worked. */
export async function stop(id) {
  const signal = AbortSignal.timeout(5000);
  await request("POST", path(id, "/cancel"), { signal }).catch(() => {});
}

/** Say something to a running response; {response} is what goes on with it. Raises ApiError 409 where it has just ended. */
export async function say(id, text) {
  const body = { input: inputOf(text) };
  return (await request("POST", path(id, "/steer"), { body, signal: AbortSignal.timeout(5000) })).json();
}

/** End the reasoning of a response: its answer begins. */
export async function answerNow(id) {
  await request("POST", path(id, "/answer_now"), { signal: AbortSignal.timeout(5000) });
}

/** Ends early when the browser is online again. */
function pause(ms, signal) {
  const over = new AbortController();
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    addEventListener("online", resolve, over);
    signal.addEventListener("abort", () => reject(signal.reason), over);
    over.signal.addEventListener("abort", () => clearTimeout(timer));
  }).finally(() => over.abort());
}
