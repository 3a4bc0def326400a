// One question with its answer on the page, and what can be done with them afterwards.

import { el } from "../shared/dom.js";
import { json } from "../shared/api.js";
import { Answer } from "./answer.js";
import { composed, taken, withoutPictures } from "./attached.js";
import { fileDetails } from "./file-chips.js";
import { composes } from "./keys.js";
import { problem } from "./problem.js";
import { replay } from "./replay.js";
import { answerActions, questionActions } from "./turn-actions.js";
import { timing } from "./timing.js";
import { versionPager } from "./version-pager.js";

export class Exchange {
  /** `question` is null for an answer that nobody asked for. `does`: {announce, open, decide(decisions), again(exchange, question),
   *  remove(exchange), choose(exchange, itemId), startNew(exchange), ready(), idle(), warn(error)}. `versions` are the ids of the first items of all versions,
   *  null for this one while it has none. */
  constructor(question, does, { responseId = null, rated = null, itemIds = [], versions = [] } = {}) {
    this.question = question;
    this.does = does;
    this.responseId = responseId;
    this.rated = rated; // {rating, comment}
    this.itemIds = itemIds; // of the items it was shown from; those of a turn made here have its response
    this.versions = versions;
    this.lost = false; // the worker may have more of it than is shown
    this.request = null; // that was sent for it, by this page
    this.answer = null;
    this.node = el("section", { class: "turn" });
    if (question !== null) this.showQuestion();
  }

  showQuestion() {
    const { question, files } = taken(this.question);
    const text = el("p", { dir: "auto" }, question);
    const actions = questionActions(withoutPictures(this.question), text, { edit: () => this.edit() });
    const at = this.versions.findIndex((id) => id === null || this.itemIds.includes(id));
    this.pager = versionPager(this.versions, at, { choose: (id) => this.does.choose(this, id) });
    const foot = el("div", { class: "question-foot" }, actions, this.pager);
    this.asked = el("div", { class: "question" }, text, ...files.map(fileDetails), foot);
    this.node.prepend(this.asked);
  }

  begin({ announce }) {
    this.answer = new Answer({ announce, open: this.does.open, decide: this.does.decide });
    this.node.append(this.answer.node);
    return this.answer;
  }

  /** Show what is stored of an answer. */
  replay(items) {
    const answer = this.begin({ announce: () => {} });
    replay(items, answer);
    this.settle();
    if (this.isSilent) this.unanswered();
  }

  /** The answer is over, for whatever reason. */
  settle() {
    this.answer.settle();
    const callbacks = {
      regenerate: () => this.does.again(this, this.question),
      timing: this.responseId !== null && !this.answer.timed ? () => this.showTiming() : null,
      remove: () => this.does.remove(this),
      copied: (done) => this.does.announce(done ? "Copied." : "Selected. Press Ctrl+C."),
      failed: this.does.warn,
    };
    if (this.answered && this.question !== null) this.node.append(answerActions(this, callbacks));
  }

  /** A question that the worker may not have. */
  get unsent() {
    return this.question !== null && this.responseId === null && this.itemIds.length === 0;
  }

  get answered() {
    return this.answer !== null && this.answer.says;
  }

  /** Whether the model ended its turn without a word, perhaps behind a thought. */
  get isSilent() {
    return !this.answered && !this.answer.asks;
  }

  /** For who leafs through the versions by the keyboard. */
  focusVersion() {
    this.node.scrollIntoView({ block: "nearest" });
    this.pager?.querySelector("button:not(:disabled)")?.focus({ preventScroll: true });
  }

  get markdown() {
    return this.answer.markdown;
  }

  get plainText() {
    return this.answer.plainText;
  }

  unanswered() {
    this.fail(Object.assign(new Error("This question was not answered."), { status: 0 }));
  }

  stopped() {
    if (this.answered) this.answer.note("Stopped. The answer above is incomplete.");
    else this.fail(Object.assign(new Error("Stopped before the answer began."), { status: 0 }));
  }

  fail(error) {
    if (this.answer === null) this.begin({ announce: () => {} }).settle();
    const retry = () => this.does.again(this, this.question);
    const remove = () => this.does.remove(this);
    this.answer.foot.append(problem(error, { retry, remove, ready: this.does.idle, startNew: () => this.does.startNew(this) }));
  }

  /** Traces are kept for some days only. */
  async showTiming() {
    const button = [...this.node.querySelectorAll(".action")].find(({ textContent }) => textContent === "Timing");
    button?.remove();
    try {
      const panel = timing(await json("GET", `/ops/api/traces/${encodeURIComponent(this.responseId)}`));
      panel.open = true;
      this.answer.foot.append(panel);
      panel.querySelector("summary").focus();
    } catch (error) {
      this.answer.note(error.status === 404 ? "The timing of this answer is no longer kept." : error.message);
    }
  }

  /** The question becomes a field in its place. */
  edit() {
    const field = el("textarea", { "aria-label": "Edit the question", dir: "auto", rows: "3" });
    const { question, files } = taken(this.question);
    field.value = question;
    const close = () => {
      form.remove();
      this.asked.hidden = false;
      this.asked.querySelector("[aria-label=Edit]").focus({ preventScroll: true });
    };
    const send = () => {
      const text = field.value.trim();
      if (text === "" || !this.does.ready()) return;
      close();
      this.does.again(this, composed(text, files));
    };
    const form = el(
      "form",
      { class: "edit-question", submit: (event) => { event.preventDefault(); send(); } },
      field,
      el("p", { class: "quiet" }, "The earlier version is kept."),
      el("button", { type: "button", class: "button", click: close }, "Cancel"),
      el("button", { class: "button primary" }, "Send"),
    );
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (composes(event)) return;
      if (event.key === "Escape") close();
      if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); send(); }
    });
    this.asked.hidden = true;
    this.asked.after(form);
    field.focus();
  }
}
