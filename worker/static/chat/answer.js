// One answer while it is being generated: sources, then steps and text in the order in which they happen, then its timing.

import { el } from "../shared/dom.js";
import { readable } from "../markdown/readable.js";
import { MarkdownStream } from "../markdown/stream.js";
import { Approval } from "./approval.js";
import { Sources } from "./sources.js";
import { Steps } from "./steps.js";
import { Thought } from "./thought.js";
import { timing } from "./timing.js";

// The page shows that it lives while an answer is awaited. An animation would be drawn sixty times a second, on the cores
// that compute the answer.
const BEAT_MS = 1000;
const CUT = "firsttoken:cut";
const TIMED_OUT = "The answer ends here because it reached its time limit.";
const FULL = "The answer ends here because the context of the model is full.";
const CUT_SHORT = "The answer ends here because it reached its length limit.";

export class Answer {
  /** `announce(text)` speaks to screen readers, `open(passage)` shows a source, `decide(decisions)` goes on once the person
   *  has decided about every call that needs approval. */
  constructor({ announce, open, decide }) {
    this.announce = announce;
    this.decide = decide;
    this.approvals = new Map(); // id of the request -> Approval
    this.sources = new Sources(open);
    this.steps = new Steps();
    this.texts = new Map(); // item id -> MarkdownStream
    this.thoughts = new Map(); // item id -> Thought
    this.lost = false;
    this.timed = false;
    this.hurry = null; // () => Promise: end the reasoning, while that is possible
    this.stage = el("span", {}, "Thinking");
    this.now = el("button", { type: "button", class: "button", click: () => this.answerNow() }, "Answer now");
    this.now.hidden = true;
    const pulse = el("span", { class: "pulse" });
    this.beat = setInterval(() => pulse.classList.toggle("is-faint"), BEAT_MS);
    this.waiting = el("p", { class: "waiting" }, pulse, this.stage, this.now);
    this.body = el("div", { class: "answer-body" });
    this.heard = el("p", { class: "quiet heard", dir: "auto" });
    this.heard.hidden = true;
    this.foot = el("div", { class: "answer-foot" });
    const parts = [this.sources.node, this.body, this.waiting, this.heard, this.foot];
    this.node = el("article", { class: "answer", "aria-label": "Answer" }, ...parts);
  }

  wait(text) {
    this.stage.textContent = text;
    this.waiting.hidden = false;
  }

  /** The connection is lost; the text stays in place until the stream resumes. */
  reconnect() {
    if (!this.lost) this.announce("Connection lost. Reconnecting.");
    this.lost = true;
    this.wait("Reconnecting");
  }

  connected() {
    if (!this.lost) return;
    this.lost = false;
    this.wait("Thinking");
    this.waiting.hidden = this.texts.size > 0;
  }

  foundSources(passages) {
    this.sources.show(passages);
    if (passages.length > 0) this.announce(passages.length === 1 ? "1 source found." : `${passages.length} sources found.`);
    this.wait(passages.length > 0 ? "Reading the sources" : "Thinking");
  }

  startItem(item) {
    if (item.type === "file_search_call") this.wait("Searching the documents");
    if (item.type === "reasoning") this.startThought(item.id);
    if (item.type === "function_call" || item.type === "mcp_call") {
      this.approvals.get(item.approval_request_id)?.show(true);
      this.body.append(this.steps.start(item));
      this.wait("Using tools");
    }
  }

  startThought(itemId) {
    const thought = new Thought();
    this.thoughts.set(itemId, thought);
    this.body.append(thought.node);
    this.wait("Thinking");
    this.now.hidden = this.hurry === null;
  }

  answerNow() {
    this.now.hidden = true;
    this.hurry().catch(() => (this.now.hidden = this.waiting.hidden));
  }

  /** Something was said to it: it ends soon. */
  hear(text) {
    this.heard.textContent = `You said: ${text}`;
    this.heard.hidden = false;
  }

  think(itemId, delta) {
    this.thoughts.get(itemId)?.write(delta);
  }

  writeArguments(itemId, delta) {
    this.steps.writeArguments(itemId, delta);
  }

  write(itemId, delta) {
    this.waiting.hidden = true;
    this.textOf(itemId).append(delta);
  }

  textOf(itemId) {
    if (!this.texts.has(itemId)) {
      const node = el("div", { class: "prose writing" });
      this.body.append(node);
      const cite = (number) => this.sources.chip(number);
      const onSettled = (block) => this.announce(block.textContent);
      this.texts.set(itemId, new MarkdownStream(node, { cite, onSettled }));
    }
    return this.texts.get(itemId);
  }

  finishItem(item) {
    if (item.type === "message") this.finishText(item.id);
    if (item.type === "reasoning") this.now.hidden = true;
    if (item.type === "function_call") this.steps.called(item);
    if (item.type === "mcp_list_tools" && item.error) this.note(`No tools of ${item.server_label}: ${item.error}.`);
    if (item.type === "mcp_approval_request") this.askFor(item);
    if (item.type === "mcp_approval_response") this.approvals.get(item.approval_request_id)?.show(item.approve);
    if (item.type === "mcp_call") {
      this.steps.called(item);
      this.steps.returned(item.id, item.output ?? item.error?.content ?? "Error: It was not run.");
      this.wait("Thinking");
    }
    if (item.type === "function_call_output") {
      this.steps.returned(item.call_id, item.output);
      this.wait("Thinking");
    }
  }

  askFor(item) {
    const decided = () => {
      const all = [...this.approvals.values()];
      if (all.every(({ approve }) => approve !== null)) this.decide(all.map(({ id, approve }) => ({ id, approve })));
    };
    const approval = new Approval(item, decided);
    this.approvals.set(item.id, approval);
    this.body.append(approval.node);
    this.announce("A tool waits for your approval.");
  }

  /** Whether it ends with a decision of the person. */
  get asks() {
    return [...this.approvals.values()].some(({ approve }) => approve === null);
  }

  get says() {
    return [...this.texts.values()].some(({ text }) => text.trim() !== "");
  }

  finishText(itemId) {
    const text = this.texts.get(itemId);
    text?.finish();
    text?.node.classList.remove("writing");
  }

  /** What the model wrote, as it wrote it. */
  get markdown() {
    return [...this.texts.values()].map(({ text }) => text).join("\n\n");
  }

  /** The same as people would type it. */
  get plainText() {
    return [...this.texts.values()].map(({ node }) => readable(node)).join("\n\n");
  }

  get asWritten() {
    return this.node.classList.contains("is-written");
  }

  /** Show the text as the model wrote it, or formatted again. */
  showAsWritten(written) {
    this.node.classList.toggle("is-written", written);
    for (const { node, text } of this.texts.values()) {
      node.hidden = written;
      if (written) node.after(el("pre", { class: "written", tabindex: "0", dir: "auto" }, text));
      else node.nextElementSibling.remove();
    }
  }

  showTiming(trace) {
    this.timed = true;
    this.steps.showDurations(trace.spans);
    this.foot.append(timing(trace));
  }

  /** `details` are the `incomplete_details` of the response. */
  cutShort(details) {
    const cut = details?.[CUT] ?? "";
    if (cut !== "steered") this.note(cut.endsWith(".seconds") ? TIMED_OUT : cut === "context" ? FULL : CUT_SHORT);
  }

  note(text) {
    this.foot.prepend(el("p", { class: "note" }, text));
  }

  /** The answer is over, for whatever reason. */
  settle() {
    clearInterval(this.beat);
    this.waiting.hidden = this.heard.hidden = true;
    for (const itemId of this.texts.keys()) this.finishText(itemId);
    this.steps.settle();
    if (this.texts.size > 0) this.sources.settle();
  }
}
