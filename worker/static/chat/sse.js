// Server-sent events from a fetch body. Comments (heartbeats) are dropped; `[DONE]` ends it.

const SILENT_MS = 40_000; // the worker writes something every 15 seconds: a connection so long silent is dead, told or not

/** The body ended before `[DONE]`, or fell silent: there is more to be told. */
export class ConnectionLost extends Error {}

/** Raises ConnectionLost, and AbortError when the request was aborted. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      buffer += await more(reader);
      const frames = buffer.split(/\r?\n\r?\n/);
      buffer = frames.pop();
      for (const frame of frames) {
        const data = dataOf(frame);
        if (data === "[DONE]") return;
        if (data !== null) yield JSON.parse(data);
      }
    }
  } finally {
    // Also when the reader of the events stops early: nobody wants the rest. A broken body has nothing to cancel.
    reader.cancel().catch(() => {});
  }
}

async function more(reader) {
  let piece, timer;
  const silence = new Promise((_, fail) => (timer = setTimeout(() => fail(new ConnectionLost()), SILENT_MS)));
  try {
    piece = await Promise.race([reader.read(), silence]);
  } catch (error) {
    throw error.name === "AbortError" ? error : new ConnectionLost();
  } finally {
    clearTimeout(timer);
  }
  if (piece.done) throw new ConnectionLost();
  return piece.value;
}

function dataOf(frame) {
  const lines = frame.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.length === 0 ? null : lines.map((line) => line.slice(5).trimStart()).join("\n");
}
