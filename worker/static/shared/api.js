// Talking to the worker: JSON in, JSON out, and every failure as one kind of error that the user can act on.

/** `status` 0 means that no answer came at all. */
export class ApiError extends Error {
  constructor(status, message, { code = null, retryAfterS = null, requestId = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterS = retryAfterS;
    this.requestId = requestId;
  }
}

const SILENT_MS = 60_000;
const UNREACHABLE = "Cannot reach the worker. Check that it is running and that you are online.";

/** Like fetch, but raises ApiError for anything that is not a 2xx. An abort passes through as AbortError. */
export async function request(method, path, { body, signal, headers = {} } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      signal,
      headers: body === undefined ? headers : { ...headers, "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, UNREACHABLE);
  }
  if (!response.ok) throw await failure(response);
  return response;
}

/** Its body. Whoever gives no `signal` waits for a minute at most. */
export async function json(method, path, { signal = AbortSignal.timeout(SILENT_MS), ...options } = {}) {
  const response = await request(method, path, { signal, ...options });
  try {
    return await response.json();
  } catch (error) {
    throw error.name === "AbortError" ? error : new ApiError(0, UNREACHABLE);
  }
}

// The worker speaks to programs; these are people.
const SIGNED_OUT = "You are signed out. Sign in again to go on.";

async function failure(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // a proxy's own page, or nothing at all: the status must do
  }
  const told = error.message ?? `The worker answered with status ${response.status}.`;
  const message = response.status === 401 ? SIGNED_OUT : told;
  return new ApiError(response.status, message, {
    code: error.code ?? null,
    retryAfterS: retryAfter(response.headers),
    requestId: response.headers.get("x-request-id"),
  });
}

function retryAfter(headers) {
  const ms = Number(headers.get("retry-after-ms") ?? NaN);
  if (Number.isFinite(ms)) return ms / 1000;
  const seconds = Number(headers.get("retry-after") ?? NaN);
  return Number.isFinite(seconds) ? seconds : null;
}
