// The chat page: which conversation is shown, and how its parts hear of each other.

import { ApiError } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";
import { icon } from "../shared/icons.js";
import { themeSwitch } from "../shared/theme.js";
import { Composer } from "./composer.js";
import { createConversation, listItems } from "./conversations.js";
import { Drawer } from "./drawer.js";
import { Follow } from "./follow.js";
import { Options } from "./options.js";
import { lookAt } from "./reading.js";
import { ended, runningIn } from "./running.js";
import { Sidebar } from "./sidebar.js";
import { SourceDialog } from "./source-dialog.js";
import { Transcript } from "./transcript.js";
import { warm } from "./turn.js";
import { Welcome } from "./welcome.js";

class Chat {
  constructor() {
    this.running = new Map(); // conversations that answer right now, also while another one is shown
    this.column = byId("column");
    this.drawer = new Drawer();
    this.follow = new Follow();
    this.options = new Options();
    this.dialog = new SourceDialog();
    this.sidebar = new Sidebar({
      removed: (id) => this.transcript.id === id && this.startNew(),
      failed: (error) => this.warn(error),
      running: (id) => this.running.has(id),
    });
    this.composer = new Composer({
      send: (text) => this.send(text),
      stop: () => this.transcript.stop(),
      begin: () => this.warm(),
    });
    this.host = {
      announce: (text) => this.announce(text),
      open: (passage) => this.dialog.open(passage),
      changed: (transcript) => this.changed(transcript),
      startNew: () => this.startNew(),
      create: (transcript, question) => this.create(transcript, question),
      options: () => this.options.chosen,
    };
    addEventListener("hashchange", () => this.route());
    this.welcome = new Welcome((question) => this.send(question));
    byId("new").addEventListener("click", () => this.startNew());
  }

  async start() {
    themeSwitch("theme");
    this.route();
    await Promise.all([this.sidebar.load(), this.options.load().catch((error) => this.warn(error))]);
    this.showTitle();
  }

  /** #/c/<id> is a conversation, everything else a new one. */
  route() {
    const match = /^#\/c\/([\w-]+)$/.exec(location.hash);
    const id = match === null ? null : match[1];
    this.drawer.set(false);
    if (this.transcript !== undefined && this.transcript.id === id && id !== null) return;
    this.show(this.running.get(id) ?? new Transcript(id, this.host));
    if (id !== null && !this.running.has(id)) this.load(this.transcript);
  }

  startNew() {
    if (location.hash !== "" && location.hash !== "#/") location.hash = "#/";
    else this.route();
    this.composer.focus();
  }

  show(transcript) {
    this.transcript = transcript;
    this.column.replaceChildren(transcript.node);
    this.follow.toEnd();
    this.sidebar.select(transcript.id);
    this.composer.show(transcript.running);
    this.showState();
  }

  /** Fill a transcript from the worker; the user may have opened another one meanwhile. */
  async load(transcript) {
    this.column.dataset.state = "loading";
    try {
      const { items, running } = await listing(transcript.id);
      transcript.load(items);
      if (running !== null) transcript.resume(running).catch((error) => this.warn(error));
    } catch (error) {
      transcript.node.append(this.missing(error));
    }
    if (transcript === this.transcript) this.showState();
    this.follow.toEnd();
  }

  missing(error) {
    const message = error.status === 404 ? "This conversation no longer exists." : error.message;
    const button = el("button", { type: "button", class: "button", click: () => this.startNew() }, "New conversation");
    return el("div", { class: "problem", role: "alert" }, icon("warning"), el("p", {}, message), button);
  }

  /** The user is about to ask. Sent once per conversation, length and choice of documents and tools. */
  warm() {
    const { transcript } = this;
    if (transcript === undefined || transcript.running) return;
    const options = { conversation: transcript.id, ...this.options.chosen };
    const asked = JSON.stringify([options, transcript.node.childElementCount]);
    if (asked === this.warmed) return;
    this.warmed = asked;
    warm(options).catch(() => {}); // a hint: without it the answer only begins later
  }

  send(question) {
    if (this.transcript.running) return;
    const { transcript } = this;
    transcript.ask(question).catch((error) => this.warn(error));
    this.follow.toEnd();
    this.composer.focus();
  }

  /** Make the conversation that a transcript's first question begins. */
  async create(transcript, question) {
    const conversation = await createConversation(question);
    transcript.id = conversation.id;
    this.running.set(conversation.id, transcript);
    if (transcript === this.transcript) {
      history.replaceState(null, "", `#/c/${conversation.id}`);
      this.sidebar.current = conversation.id;
    }
    this.sidebar.raise(conversation);
    this.showTitle();
  }

  /** A turn has begun or ended. */
  changed(transcript) {
    if (transcript.id !== null) {
      if (transcript.running) this.running.set(transcript.id, transcript);
      else this.running.delete(transcript.id);
      this.sidebar.raiseById(transcript.id);
    }
    if (transcript !== this.transcript) return;
    this.composer.show(transcript.running);
    this.showState();
  }

  showState() {
    this.column.dataset.state = this.transcript.empty && this.transcript.id === null ? "empty" : "filled";
    this.welcome.show(this.column.dataset.state === "empty");
    this.showTitle();
  }

  showTitle() {
    const title = this.transcript.id === null ? null : this.sidebar.titleOf(this.transcript.id);
    byId("title").textContent = title ?? "";
    document.title = title === null ? "Firsttoken" : `${title} · Firsttoken`;
  }

  announce(text) {
    byId("announcer").append(el("p", {}, text));
    while (byId("announcer").childElementCount > 8) byId("announcer").firstChild.remove();
  }

  /** Show an error that is not part of an answer above the composer. */
  warn(error) {
    const message = error instanceof ApiError ? error.message : "Something went wrong on this page. Reload it.";
    if (!(error instanceof ApiError)) console.error(error);
    const signedOut = error.status === 401;
    byId("warning").textContent = signedOut ? "You are signed out. Run `firsttoken link` and open the link that it prints." : message;
    byId("warning").hidden = false;
  }
}

/** The stored items of a conversation and its running answer; an answer is in one of them, never in both. */
async function listing(id) {
  const items = await listItems(id);
  const running = runningIn(id);
  if (running === null) return { items, running };
  const { status } = await lookAt(running.id).catch(() => ({ status: "unknown" }));
  if (status === "in_progress") return { items, running };
  ended(id);
  return { items: await listItems(id), running: null };
}

for (const slot of document.querySelectorAll("[data-icon]")) slot.prepend(icon(slot.dataset.icon));
new Chat().start();
