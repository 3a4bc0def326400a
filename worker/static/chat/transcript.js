// One conversation on the page: its exchanges, and the turn that may be running in it.

import { ApiError } from "../shared/api.js";
import { el } from "../shared/dom.js";
import { joined, taken, withoutPictures } from "./attached.js";
import { chooseVersion, dropTurns, goBack, listItems } from "./conversations.js";
import { Exchange } from "./exchange.js";
import { exchanges, isQuestion } from "./exchanges.js";
import { IN_USE, say } from "./reading.js";
import { begun, ended, heard, runningIn } from "./running.js";
import { requestOf, resumeTurn, runTurn } from "./turn.js";
import { dropUnsent, keepUnsent, unsentIn } from "./unsent.js";

export class Transcript {
  /** `id` is null until the first question has made the conversation. `host` is the page around it:
   *  {announce, open, changed, startNew, warn, create, options}; `refocus()` gives the focus a place if what had it is gone. */
  constructor(id, host) {
    this.id = id;
    this.host = host;
    this.abort = null;
    this.loading = null; // a promise: what the worker has of it is shown
    this.said = []; // while an answer is written
    this.telling = 0; // requests that tell the worker
    this.next = null; // {id, question} of what goes on with it; `id` is null if the answer had ended before
    this.exchanges = [];
    this.node = el("div", { class: "transcript" });
    this.does = {
      announce: host.announce,
      open: host.open,
      startNew: (exchange) => this.startNew(exchange),
      warn: host.warn,
      decide: (decisions) => this.decide(decisions),
      again: (exchange, question) => this.again(exchange, question),
      remove: (exchange) => this.remove(exchange),
      choose: (exchange, itemId) => this.choose(exchange, itemId),
      ready: () => this.ready(),
      idle: () => !this.running,
    };
  }

  get running() {
    return this.abort !== null;
  }

  /** Whether turns may be changed now; says why where they may not. */
  ready() {
    if (this.running) this.host.warn(new ApiError(0, "An answer is being written. Wait until it is complete, or stop it."));
    return !this.running;
  }

  get empty() {
    return this.exchanges.length === 0;
  }

  /** Show stored items, and below them what was asked and did not arrive; `shown` are exchanges to show such questions with. */
  load(items, shown = []) {
    for (const { question, responseId, rated, versions, items: all } of exchanges(items)) {
      const answer = all.filter((item) => !isQuestion(item));
      const itemIds = all.map(({ id }) => id);
      this.add(new Exchange(question, this.does, { responseId, rated, itemIds, versions })).replay(answer);
    }
    for (const { question, versions, times } of unsentIn(this.id)) {
      const before = shown.find((exchange) => withoutPictures(exchange.question) === question);
      if (times !== null && this.times(question) > times) dropUnsent(this.id, question); // it did arrive
      else if (before !== undefined) this.add(before);
      else this.unanswered(question, versions);
    }
  }

  /** How often the worker has a question in this conversation. */
  times(question) {
    const text = withoutPictures(question);
    return this.exchanges.filter((each) => !each.unsent && each.question !== null && withoutPictures(each.question) === text).length;
  }

  /** Whether an item of the worker is of no turn that is shown here, to its end. */
  lacks({ id, firsttoken_response_id: from }) {
    return !this.exchanges.some(({ itemIds, responseId, lost }) => (
      itemIds.includes(id) || (responseId !== null && responseId === from && !lost)
    ));
  }

  /** Show and keep a question that is asked once what stands before it is shown. */
  async wait(question) {
    keepUnsent(this.id, { question });
    const node = el("section", { class: "turn" }, el("div", { class: "question" }, el("p", { dir: "auto" }, taken(question).question)));
    this.node.append(node);
    await this.loading;
    node.remove();
    this.hide(this.exchanges.filter((each) => each.unsent && each.question === withoutPictures(question)));
  }

  /** Show what the worker has now. */
  replace(items) {
    const unsent = this.exchanges.filter((exchange) => exchange.unsent);
    this.exchanges = [];
    this.node.replaceChildren();
    this.load(items, unsent);
  }

  add(exchange) {
    if (exchange.question !== null) this.passOver();
    this.exchanges.push(exchange);
    this.node.append(exchange.node);
    return exchange;
  }

  /** What was not decided before another question cannot be decided any more. */
  passOver() {
    for (const { answer } of this.exchanges) answer?.approvals.forEach((approval) => approval.settle());
  }

  /** A question that was sent and of which the worker keeps nothing. */
  unanswered(question, versions = []) {
    this.add(new Exchange(question, this.does, { versions: [...versions, null] })).unanswered();
  }

  /** Ask, and show what comes. `sent` is the request of a question of which nobody knows whether it has arrived. Never raises: what
   *  goes wrong is shown where the answer would be. */
  async ask(question, versions = [], sent = null) {
    this.keep(question, versions);
    const run = async (turn, answer) => {
      if (this.id === null) await this.create(question);
      const request = sent ?? requestOf({ question, conversation: this.id, ...this.host.options(this) });
      this.exchanges.at(-1).request = request;
      await runTurn({ ...turn, conversation: this.id, request }, answer);
    };
    await this.answer(question, run, versions);
  }

  /** Go on after the person has decided about calls. Never raises. */
  async decide(decisions) {
    if (!this.ready()) return;
    const input = decisions.map(({ id, approve }) => ({ type: "mcp_approval_response", approval_request_id: id, approve }));
    const run = (turn, answer) => {
      this.exchanges.at(-1).decisions = decisions; // to be sent again, should this fail
      const request = requestOf({ question: input, conversation: this.id, ...this.host.options(this) });
      return runTurn({ ...turn, conversation: this.id, request }, answer);
    };
    await this.answer(null, run);
  }

  /** Until the worker has taken a question, this browser has it. */
  keep(question, versions = []) {
    keepUnsent(this.id, { question, versions, times: this.times(question) });
  }

  /** What was asked here before and did not arrive belongs to the new conversation as well. */
  async create(question) {
    await this.host.create(this, question);
    const own = new Set([...this.exchanges.map((exchange) => exchange.question), ...this.said].map(withoutPictures));
    for (const entry of unsentIn(null).filter((each) => own.has(each.question))) {
      keepUnsent(this.id, entry);
      dropUnsent(null, entry.question);
    }
  }

  /** Go on showing an answer that was begun before this page was loaded. `next` is what was said to it, {id, question} of
   *  what goes on with it; `id` is null if the worker does not have it. */
  async resume({ id, question, versions = [], next = null }) {
    if (next !== null && next.id === null) this.said.push(next.question);
    else this.next = next;
    const run = (turn, answer) => {
      if (this.next !== null) answer.hear(taken(next.question).question);
      return resumeTurn({ ...turn, conversation: this.id, id }, answer);
    };
    await this.answer(question, run, versions);
  }

  /** Say something while an answer is written: that ends at the next safe place, and another one goes on. */
  async say(text) {
    this.said.push(text);
    keepUnsent(this.id, { question: text });
    this.exchanges.at(-1).answer.hear(taken(joined(this.said)).question);
    await this.tell();
  }

  /** Once the worker has the question, it is told all that was said since. */
  async tell() {
    const { responseId, answer } = this.exchanges.at(-1);
    if (responseId === null || this.said.length === 0) return;
    const said = this.said.splice(0);
    const text = joined(said);
    const next = { id: this.next?.id ?? null, question: this.next === null ? text : joined([this.next.question, text]) };
    this.next = next;
    heard(this.id, next.question);
    for (const each of said) dropUnsent(this.id, each);
    answer.hear(taken(text).question);
    this.telling += 1;
    try {
      next.id = (await say(responseId, text)).response;
    } catch (error) {
      if (error.status !== 409) this.host.warn(error); // it has just ended: then this is the next question
    }
    this.telling -= 1;
    if (!this.running) await this.goOn();
  }

  /** Once it is known whether the worker heard what was said: else that would be asked twice. */
  async goOn() {
    const { next } = this;
    if (next === null || this.telling > 0) return;
    this.next = null;
    if (next.id === null) return this.ask(next.question);
    begun(this.id, next.id, next.question, []);
    await this.resume({ ...next, next: null });
  }

  /** `versions` are the ids of those beside which this one will stand. */
  async answer(question, run, versions = []) {
    const exchange = this.add(new Exchange(question, this.does, { versions: [...versions, null] }));
    const answer = exchange.begin({ announce: this.host.announce });
    this.abort = new AbortController();
    this.host.changed(this);
    try {
      const taken = (id) => {
        exchange.responseId = id;
        if (question !== null) { // decisions about calls are no text
          begun(this.id, id, question, versions);
          dropUnsent(this.id, question);
        }
        this.tell().catch((error) => this.host.warn(error));
      };
      await run({ signal: this.abort.signal, begun: taken }, answer);
      this.host.announce("Answer complete.");
      if (exchange.isSilent && this.next === null) exchange.unanswered();
    } catch (error) {
      this.failed(error, exchange);
      this.giveUp();
    } finally {
      this.abort = null;
      exchange.settle();
      this.host.changed(this);
    }
    await this.goOn();
  }

  /** What was said to the answer that is written. */
  get unheard() {
    return [...(this.next === null ? [] : [this.next.question]), ...this.said];
  }

  /** What was said to an answer that was stopped or failed is not answered, but can be asked again. */
  giveUp() {
    const { unheard } = this;
    this.said = [];
    this.next = null;
    if (unheard.length === 0) return;
    for (const each of unheard) dropUnsent(this.id, each);
    const question = joined(unheard);
    keepUnsent(this.id, { question });
    this.unanswered(question);
  }

  failed(error, exchange) {
    if (error.name === "AbortError") {
      exchange.stopped();
      this.host.announce("Stopped.");
      return;
    }
    const shown = error instanceof ApiError ? error : new ApiError(0, "Something went wrong on this page. Reload it.");
    if (shown !== error) console.error(error);
    exchange.lost = shown.status === 0 || shown.code === IN_USE;
    exchange.fail(shown);
  }

  /** Ask a question in the place of an exchange: it and what follows it stay as a version, unless nothing of it was
   *  answered. One that the worker never had is in no place there: it is asked at the end. */
  async again(exchange, question) {
    if (!this.ready()) return;
    if (question === null) {
      this.hide([exchange]);
      await this.decide(exchange.decisions);
      return;
    }
    const sent = exchange.unsent && exchange.lost && question === exchange.question ? exchange.request : null;
    const gone = exchange.unsent ? [exchange] : this.exchanges.slice(this.exchanges.indexOf(exchange));
    const answered = gone.some((other) => other.answered);
    this.keep(question); // should the page go now, it is still there
    await this.warning(async () => {
      const versions = await this.makeRoom(question, answered ? () => goBack(this.id, exchange) : () => this.forget(gone));
      this.hide(gone);
      this.host.refocus();
      await this.ask(question, versions, sent);
    });
  }

  /** What is refused leaves nothing that waits for an answer. */
  async makeRoom(question, act) {
    try {
      return await act();
    } catch (error) {
      dropUnsent(this.id, question);
      throw error;
    }
  }

  async remove(exchange) {
    if (!this.ready()) return;
    await this.warning(async () => {
      const beside = await this.forget([exchange]);
      if (beside.length > 0 && exchange === this.exchanges.at(-1)) return this.reload(beside.at(-1), exchange);
      this.hide([exchange]);
      this.host.refocus();
      this.host.changed(this);
    });
  }

  /** What cannot be answered here is the draft of a new conversation. */
  startNew({ question, unsent }) {
    if (unsent) dropUnsent(this.id, question);
    keepUnsent(null, { question });
    this.host.startNew();
  }

  async choose(exchange, itemId) {
    if (this.ready()) await this.warning(() => this.reload(itemId, exchange));
  }

  /** Show the conversation as it is with this version of an exchange. */
  async reload(itemId, exchange) {
    const at = this.exchanges.slice(0, this.exchanges.indexOf(exchange)).filter((before) => !before.unsent).length;
    await chooseVersion(this.id, itemId);
    ended(this.id, runningIn(this.id)?.id); // what waited for an answer beside it is given up
    if (exchange.unsent) dropUnsent(this.id, exchange.question);
    const items = await listItems(this.id);
    this.replace(items);
    this.exchanges[at]?.focusVersion();
    this.host.changed(this);
  }

  /** Delete exchanges; the ids of the versions beside the first of them. */
  async forget(gone) {
    const versions = gone[0].versions.filter((id) => id !== null && !gone[0].itemIds.includes(id));
    for (const { question, unsent, responseId } of gone) {
      if (unsent) dropUnsent(this.id, question);
      else ended(this.id, responseId); // it failed
    }
    if (this.id !== null) await dropTurns(this.id, gone);
    return versions;
  }

  hide(gone) {
    for (const { node } of gone) node.remove();
    this.exchanges = this.exchanges.filter((other) => !gone.includes(other));
  }

  /** What the worker refuses changes nothing on the page. */
  async warning(act) {
    try {
      await act();
    } catch (error) {
      this.host.warn(error);
    }
  }

  stop() {
    this.abort?.abort();
  }
}
