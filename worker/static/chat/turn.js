// One turn: send a question, and hand each event of the stream to the answer that shows it.

import { ApiError, request } from "../shared/api.js";
import { inputOf } from "./attached.js";
import { answerNow, begin, once, Reading, stop } from "./reading.js";
import { ended } from "./running.js";
import { promptFields, turnFields } from "./settings.js";

const TOOLS = ["calculator", "current_time", "convert_units"];

/** What is sent to ask. Sent twice, it is asked once. */
export function requestOf({ conversation, question, store, tools, settings }) {
  return once({
    conversation,
    input: typeof question === "string" ? inputOf(question) : question, // decisions about calls are items already
    stream: true,
    ...turnFields(settings),
    tools: toolList(store, tools, settings),
    include: ["firsttoken:sources", "firsttoken:trace"],
  });
}

/** Resolves when the answer is complete. Raises ApiError when it was refused, failed or broke off, AbortError when
 *  `signal` or another page stopped it. `begun(id)` is told the response once the worker has taken the question. */
export async function runTurn({ conversation, request, signal, begun }, answer) {
  const response = await begin(request, signal);
  const reading = new Reading({ signal, reconnecting: () => answer.reconnect() });
  await show(reading, response, { conversation, begun }, answer);
}

/** The same for a turn that is already running, from its first event. */
export async function resumeTurn({ conversation, id, signal, begun }, answer) {
  const reading = new Reading({ signal, reconnecting: () => answer.reconnect() }, id);
  await show(reading, await reading.connect(), { conversation, begun }, answer);
}

async function show(reading, response, { conversation, begun }, answer) {
  let complete = false;
  try {
    for await (const event of reading.events(response)) {
      if (event.type === "response.created") {
        begun(reading.id);
        answer.hurry = () => answerNow(reading.id);
      }
      answer.connected();
      complete = apply(event, answer) || complete;
    }
  } catch (error) {
    if (error.name === "AbortError") {
      if (reading.id !== null) await stop(reading.id);
      ended(conversation, reading.id);
    }
    throw error; // what failed stays noted: after a reload the question is still there to be asked again
  }
  ended(conversation, reading.id);
  if (!complete) throw new DOMException("The answer was stopped on another page.", "AbortError");
}

/** Prefill the prompt before the next question, and search for what is written of it; `conversation` is null for a new one. */
export async function warm({ conversation, store, tools, settings, draft }) {
  const place = conversation === null ? "" : `/${encodeURIComponent(conversation)}`;
  await request("POST", `/v1/conversations${place}/warm`, {
    body: { ...promptFields(settings), tools: toolList(store, tools, settings), ...(draft ? { input: draft } : {}) },
  });
}

function toolList(store, tools, { servers }) {
  const own = TOOLS.map((name) => ({ type: `firsttoken:${name}` }));
  return [...(store === null ? [] : [searchOf(store)]), ...(tools ? [...own, ...serversIn(servers)] : [])];
}

/** Tools that only read are used at once; all others ask the person. */
function serversIn(addresses) {
  const urls = (addresses ?? "").split(/\s+/).filter((url) => url !== "");
  return urls.map((url, n) => ({
    type: "mcp",
    server_label: labelOf(url, n),
    server_url: url,
    require_approval: { never: { read_only: true } },
  }));
}

/** A name that people know it by: its host. */
function labelOf(url, n) {
  const host = (URL.canParse(url) ? new URL(url).hostname : "").replaceAll(/[^A-Za-z0-9]+/g, "_").slice(0, 40);
  return `${/^[A-Za-z]/.test(host) ? host : `server_${host}`}${n === 0 ? "" : `_${n + 1}`}`;
}

/** A question that the documents are not about is answered without them: what is about it, the worker says. */
function searchOf({ id, threshold }) {
  return { type: "file_search", vector_store_ids: [id], ranking_options: { score_threshold: threshold } };
}

/** Show one event; true when it completes the answer. Unknown events are ignored. */
function apply(event, answer) {
  switch (event.type) {
    case "firsttoken:sources":
      answer.foundSources(event.passages);
      break;
    case "response.output_item.added":
      answer.startItem(event.item);
      break;
    case "response.function_call_arguments.delta":
    case "response.mcp_call_arguments.delta":
      answer.writeArguments(event.item_id, event.delta);
      break;
    case "response.output_text.delta":
      answer.write(event.item_id, event.delta);
      break;
    case "response.reasoning_text.delta":
      answer.think(event.item_id, event.delta);
      break;
    case "response.output_item.done":
      answer.finishItem(event.item);
      break;
    case "firsttoken:trace":
      answer.showTiming(event.trace);
      break;
    case "response.completed":
      return true;
    case "response.incomplete":
      answer.cutShort(event.response.incomplete_details);
      return true;
    case "response.failed":
      throw new ApiError(500, event.response.error?.message ?? "The answer failed.", {
        code: event.response.error?.code ?? null,
      });
  }
  return false;
}
