// Server-sent events from a fetch body. Comments (heartbeats) are dropped; `[DONE]` or the end of the body ends it.

export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
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

function dataOf(frame) {
  const lines = frame.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.length === 0 ? null : lines.map((line) => line.slice(5).trimStart()).join("\n");
}
