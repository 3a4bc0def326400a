// One conversation on the page: its questions and answers, and the turn that may be running in it.

import { ApiError } from "../shared/api.js";
import { el } from "../shared/dom.js";
import { Answer } from "./answer.js";
import { problem } from "./problem.js";
import { replay } from "./replay.js";
import { resumeTurn, runTurn } from "./turn.js";

export class Transcript {
  /** `id` is null until the first question has made the conversation. `host` is the page around it:
   *  {announce, open, changed, startNew, create, options}. */
  constructor(id, host) {
    this.id = id;
    this.host = host;
    this.abort = null;
    this.node = el("div", { class: "transcript" });
  }

  get running() {
    return this.abort !== null;
  }

  get empty() {
    return this.node.childElementCount === 0;
  }

  load(items) {
    for (const { question, answerItems } of exchanges(items)) {
      if (question !== null) this.node.append(questionNode(question));
      if (answerItems.length === 0) continue;
      const answer = this.newAnswer(() => {});
      replay(answerItems, answer);
      answer.settle();
    }
  }

  /** Ask, and show what comes. Never raises: what goes wrong is shown where the answer would be. */
  async ask(question) {
    await this.answer(question, async (turn, answer) => {
      if (this.id === null) await this.host.create(this, question);
      await runTurn({ ...turn, conversation: this.id, ...this.host.options() }, answer);
    });
  }

  /** Go on showing an answer that was begun before this page was loaded. */
  async resume({ id, question }) {
    await this.answer(question, (turn, answer) => resumeTurn({ ...turn, conversation: this.id, id }, answer));
  }

  async answer(question, run) {
    const asked = questionNode(question);
    this.node.append(asked);
    const answer = this.newAnswer(this.host.announce);
    this.abort = new AbortController();
    this.host.changed(this);
    try {
      await run({ question, signal: this.abort.signal }, answer);
      this.host.announce("Answer complete.");
    } catch (error) {
      this.failed(error, question, asked, answer);
    } finally {
      this.abort = null;
      answer.settle();
      this.host.changed(this);
    }
  }

  newAnswer(announce) {
    const answer = new Answer({ announce, open: this.host.open });
    this.node.append(answer.node);
    return answer;
  }

  failed(error, question, asked, answer) {
    if (error.name === "AbortError") {
      answer.stopped();
      this.host.announce("Stopped.");
      return;
    }
    const shown = error instanceof ApiError ? error : new ApiError(0, "Something went wrong on this page. Reload it.");
    if (shown !== error) console.error(error);
    const retry = () => {
      if (this.running) return;
      asked.remove();
      answer.node.remove();
      this.ask(question);
    };
    answer.foot.append(problem(shown, { retry, startNew: this.host.startNew }));
  }

  stop() {
    this.abort?.abort();
  }
}

function questionNode(text) {
  return el("div", { class: "question" }, el("p", {}, text));
}

/** Items -> [{question, answerItems}]: each message of the user begins an exchange. */
function exchanges(items) {
  const list = [];
  for (const item of items) {
    if (item.type === "message" && item.role === "user") list.push({ question: textOf(item), answerItems: [] });
    else if (item.type !== "message" || item.role === "assistant") {
      if (list.length === 0) list.push({ question: null, answerItems: [] });
      list.at(-1).answerItems.push(item);
    }
  }
  return list;
}

function textOf(message) {
  return message.content.map((part) => part.text ?? "").join("\n");
}
