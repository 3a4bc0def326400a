// The chat page: which conversation is shown, and how its parts hear of each other.

import { ApiError } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";
import { icon } from "../shared/icons.js";
import { comeBack } from "../shared/place.js";
import { signInButton } from "../shared/sign-in-button.js";
import { themeSwitch } from "../shared/theme.js";
import { DocumentsPanel } from "../documents/panel.js";
import { listenToFiles } from "../documents/drop.js";
import { AccountMenu } from "./account-menu.js";
import { joined, taken } from "./attached.js";
import { Composer } from "./composer.js";
import { createConversation, getConversation, lastItems, listItems, saveSettings } from "./conversations.js";
import { draftOf, keepDraft } from "./drafts.js";
import { Drawer } from "./drawer.js";
import { watchElsewhere } from "./elsewhere.js";
import { Follow } from "./follow.js";
import { listenToKeys } from "./keys.js";
import { Options } from "./options.js";
import { Palette } from "./palette.js";
import { lookAt } from "./reading.js";
import { begun, ended, runningIn } from "./running.js";
import { settingsIn } from "./settings.js";
import { SettingsPanel } from "./settings-panel.js";
import { ShareDialog } from "./share-dialog.js";
import { Sidebar } from "./sidebar.js";
import { SourceDialog } from "./source-dialog.js";
import { Transcript } from "./transcript.js";
import { warm } from "./turn.js";
import { dropUnsent, keepUnsent, unsentIn } from "./unsent.js";
import { Welcome } from "./welcome.js";

const ON = new Set(["in_progress", "queued"]); // answers that are made, or will be

class Chat {
  constructor() {
    this.running = new Map(); // conversations that answer right now, also while another one is shown
    this.column = byId("column");
    this.drawer = new Drawer();
    this.follow = new Follow();
    this.options = new Options();
    this.newSettings = settingsIn();
    this.unsaved = new Map(); // settings of conversations that the worker does not have yet
    this.settings = new SettingsPanel({
      changed: (settings) => this.changeSettings(settings).catch((error) => this.warn(error)),
      stores: () => this.options.stores,
    });
    this.options.onPick((store) => this.pickStore(store).catch((error) => this.warn(error)));
    this.dialog = new SourceDialog();
    this.sharing = new ShareDialog();
    this.sidebar = new Sidebar({
      share: (conversation) => this.sharing.open(conversation),
      removed: (id) => this.transcript.id === id && this.startNew(),
      failed: (error) => this.warn(error),
      running: (id) => this.running.has(id),
    });
    this.composer = new Composer({
      send: (text) => this.send(text),
      stop: () => this.transcript.stop(),
      changed: (text) => {
        keepDraft(this.transcript?.id ?? null, text);
        this.foresee(taken(text).question.trim());
      },
      begin: (writes) => this.warm(writes),
    });
    this.host = {
      announce: (text) => this.announce(text),
      open: (passage) => this.dialog.open(passage),
      changed: (transcript) => this.changed(transcript),
      startNew: () => this.startNew(),
      warn: (error) => this.warn(error),
      create: (transcript, question) => this.create(transcript, question),
      options: (transcript) => this.optionsOf(transcript),
      refocus: () => document.activeElement === document.body && this.composer.focus(),
    };
    addEventListener("hashchange", () => this.route());
    this.welcome = new Welcome({ ask: (question) => this.send(question), options: this.options });
    listenToKeys({ stop: () => this.transcript.stop(), focus: () => this.composer.input.focus() });
    this.account = new AccountMenu({
      failed: (error) => this.warn(error instanceof ApiError ? error : new ApiError(0, error.message)),
      imported: (conversation) => {
        this.sidebar.raise(conversation);
        this.goTo(`#/c/${conversation.id}`);
      },
    });
    this.palette = new Palette({
      commands: [
        { image: "plus", label: "New conversation", act: () => this.startNew() },
        { image: "book", label: "Documents", act: () => this.documents.open() },
        { image: "upload", label: "Import a conversation", act: () => this.account.import() },
      ],
      recent: () => this.sidebar.conversations,
      open: (id) => this.goTo(`#/c/${id}`),
    });
    this.documents = new DocumentsPanel(this.options);
    listenToFiles((files) => this.take(files));
    this.pictures = byId("pictures-picker");
    byId("add-pictures").addEventListener("click", () => this.pictures.click());
    this.pictures.addEventListener("change", () => {
      this.take([...this.pictures.files]);
      this.pictures.value = "";
    });
    byId("add-documents").addEventListener("click", () => this.documents.open());
    byId("find").addEventListener("click", () => this.palette.open());
    byId("about").addEventListener("click", ({ currentTarget }) => {
      this.sidebar.openMenu(currentTarget, this.sidebar.get(this.transcript.id));
    });
    byId("new").addEventListener("click", () => this.startNew());
    byId("warning-close").addEventListener("click", () => this.calm());
  }

  /** Pictures belong to the question, if the model sees; all other files are documents. */
  take(files) {
    const pictures = byId("add-pictures").hidden ? [] : files.filter(({ type }) => type.startsWith("image/"));
    const documents = files.filter((file) => !pictures.includes(file));
    this.composer.pastes.take(pictures).catch((error) => this.warn(new ApiError(0, error.message)));
    if (documents.length > 0) this.documents.open(documents);
  }

  async start() {
    themeSwitch("theme");
    const typed = this.composer.input.value;
    this.route();
    this.composer.add(typed);
    this.composer.focus();
    const loads = [this.options.load(), this.welcome.load()].map((load) => load.catch((error) => this.warn(error)));
    await Promise.all([this.sidebar.load(), ...loads]);
    this.showTitle();
    watchElsewhere(() => this.catchUp(), (error) => this.warn(error));
  }

  /** Show what was asked and answered elsewhere since, and go on with what is being answered. */
  async catchUp() {
    const { transcript } = this;
    await this.sidebar.refresh();
    this.showTitle();
    this.saveSettings().catch(() => {}); // it was told when they were chosen
    await transcript.loading;
    const { id } = transcript;
    const busy = () => transcript !== this.transcript || transcript.running || this.column.contains(document.activeElement);
    if (id === null || busy()) return;
    const noted = runningIn(id);
    const answers = noted === null ? [] : [{ firsttoken_response_id: noted.id }];
    if (![...answers, ...await lastItems(id)].some((item) => transcript.lacks(item))) return;
    const { items, running } = await listing(id);
    if (busy()) return;
    transcript.replace(items);
    if (running !== null) transcript.resume(running).catch((error) => this.warn(error));
    this.showState();
  }

  /** #/c/<id> is a conversation, everything else a new one. */
  route() {
    const match = /^#\/c\/([\w-]+)$/.exec(location.hash);
    const id = match === null ? null : match[1];
    this.drawer.set(false);
    if (this.transcript !== undefined && this.transcript.id === id && id !== null) return;
    this.show(this.running.get(id) ?? new Transcript(id, this.host));
    if (id !== null && !this.running.has(id)) this.transcript.loading = this.load(this.transcript);
  }

  /** At once: what is typed before the browser tells of a new address would be a draft of the old one. */
  goTo(address) {
    if (location.hash !== address) history.pushState(null, "", address);
    this.route();
  }

  startNew() {
    this.goTo(location.hash === "" ? "" : "#/");
    this.composer.focus();
  }

  show(transcript) {
    this.composer.keep();
    this.calm();
    this.transcript = transcript;
    this.column.replaceChildren(transcript.node);
    this.follow.toEnd();
    this.sidebar.select(transcript.id);
    this.composer.show(transcript.running);
    if (transcript.id === null) takeBack();
    this.composer.fill(draftOf(transcript.id));
    this.showState();
    if (this.column.dataset.state === "empty") this.follow.toStart();
  }

  /** Fill a transcript from the worker; the user may have opened another one meanwhile. */
  async load(transcript) {
    this.column.dataset.state = "loading";
    try {
      const [{ items, running }, conversation] = await Promise.all([
        listing(transcript.id), this.sidebar.get(transcript.id) ?? getConversation(transcript.id),
      ]);
      this.sidebar.add(conversation);
      transcript.load(items);
      if (running !== null) transcript.resume(running).catch((error) => this.warn(error));
    } catch (error) {
      transcript.node.append(this.missing(error, transcript));
    }
    transcript.loading = null;
    if (transcript === this.transcript) this.showState();
    this.follow.toEnd();
  }

  missing({ status, message }, transcript) {
    const gone = status === 404;
    const act = () => {
      if (gone) return this.startNew();
      transcript.node.replaceChildren();
      transcript.loading = this.load(transcript);
    };
    const button = el("button", { type: "button", class: "button", click: act }, gone ? "New conversation" : "Try again");
    const told = el("p", {}, gone ? "This conversation no longer exists." : message);
    return el("div", { class: "problem", role: "alert" }, icon("warning"), told, status === 401 ? signInButton() : button);
  }

  /** The user is about to ask. Sent once per conversation, length and choice of documents and tools, and when the user `writes`
   *  on: then what was foreseen is given up. */
  warm(writes) {
    const { transcript } = this;
    if (transcript === undefined || transcript.running) return;
    if (writes && this.foresees) [this.foresees, this.warmed] = [false, null];
    const options = { conversation: transcript.id, ...this.optionsOf(transcript) };
    const asked = JSON.stringify([options, transcript.node.childElementCount]);
    if (asked === this.warmed) return;
    this.warmed = asked;
    warm(options).catch(() => {}); // a hint: without it the answer only begins later
  }

  /** The keys rest: what is written so far may be the question. */
  foresee(text) {
    const { transcript } = this;
    if (!text || transcript === undefined || transcript.running) return;
    const options = this.optionsOf(transcript);
    if (options.store === null) return;
    this.foresees = true;
    warm({ conversation: transcript.id, ...options, draft: text }).catch(() => {});
  }

  /** While an answer is written, what is sent goes on from it; a conversation that is on its way comes first. */
  async send(question) {
    const { transcript } = this;
    this.calm();
    if (transcript.loading !== null) await transcript.wait(question);
    (transcript.running ? transcript.say(question) : transcript.ask(question)).catch((error) => this.warn(error));
    this.follow.toEnd();
    this.composer.focus();
  }

  /** What an answer of this conversation may use, and how it is made. */
  optionsOf({ id }) {
    const settings = id === null ? this.newSettings : this.unsaved.get(id) ?? settingsIn(this.sidebar.get(id)?.metadata);
    return { ...this.options.chosen(settings.store), settings };
  }

  /** A new conversation needs no note: the store that was picked last is the usual one. */
  async pickStore(store) {
    if (this.transcript.id === null) this.newSettings = { ...this.newSettings, store: null };
    else await this.changeSettings({ ...this.optionsOf(this.transcript).settings, store });
  }

  /** A conversation that has not begun takes its settings along when it does. */
  async changeSettings(settings) {
    const { id } = this.transcript;
    if (this.sidebar.get(id) === null) this.newSettings = settings;
    else this.unsaved.set(id, settings);
    this.showTitle();
    await this.saveSettings();
  }

  /** The next question has them already. */
  async saveSettings() {
    for (const [id, settings] of this.unsaved) {
      const conversation = this.sidebar.get(id);
      if (conversation !== null) this.sidebar.update(await saveSettings(conversation, settings));
      if (this.unsaved.get(id) === settings) this.unsaved.delete(id);
    }
  }

  /** Make the conversation that a transcript's first question begins. */
  async create(transcript, question) {
    const conversation = await createConversation(question, { ...this.newSettings, store: this.newSettings.store ?? this.options.kept });
    transcript.id = conversation.id;
    this.newSettings = settingsIn();
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
    this.calm();
    this.composer.show(transcript.running);
    this.showState();
  }

  showState() {
    this.column.dataset.state = this.transcript.empty && this.transcript.id === null ? "empty" : "filled";
    document.body.dataset.state = this.column.dataset.state;
    this.welcome.show(this.column.dataset.state === "empty");
    this.showTitle();
  }

  showTitle() {
    const title = this.transcript.id === null ? null : this.sidebar.titleOf(this.transcript.id);
    byId("title").textContent = title ?? (this.transcript.id === null ? "New conversation" : "Untitled");
    const { settings } = this.optionsOf(this.transcript);
    this.settings.show(settings);
    this.options.use(settings.store);
    byId("about").hidden = this.sidebar.get(this.transcript.id) === null;
    document.title = title === null ? "Firsttoken" : `${title} · Firsttoken`;
  }

  announce(text) {
    byId("announcer").append(el("p", {}, text));
    while (byId("announcer").childElementCount > 8) byId("announcer").firstChild.remove();
  }

  /** Show an error that is not part of an answer above the composer, until it is closed or something else is done. */
  warn(error) {
    const message = error instanceof ApiError ? error.message : "Something went wrong on this page. Reload it.";
    if (!(error instanceof ApiError)) console.error(error);
    byId("warning-text").replaceChildren(message, error.status === 401 ? signInButton() : "");
    byId("warning").hidden = false;
  }

  calm() {
    byId("warning").hidden = true;
  }
}

/** The stored items of a conversation and its running answer. What was asked or said and the worker does not have is unsent then:
 *  a turn is in one of the three, never in two. */
async function listing(id) {
  const running = runningIn(id);
  if (running === null) return { items: await listItems(id), running };
  const now = await lookAt(running.id).catch(() => ({}));
  const next = running.said === null ? null : { id: now.firsttoken_successor ?? null, question: running.said };
  if (ON.has(now.status)) return { items: await listItems(id), running: { ...running, next } };
  if (next !== null && next.id !== null) { // it has ended, and that goes on
    begun(id, next.id, next.question, []);
    return listing(id);
  }
  const items = await listItems(id);
  if (!items.some((item) => item.firsttoken_response_id === running.id)) keepUnsent(id, running);
  if (next !== null) keepUnsent(id, next);
  ended(id, running.id);
  return { items, running: null };
}

/** What was asked where no conversation could begin is a draft again. */
function takeBack() {
  const texts = unsentIn(null).map(({ question }) => question);
  if (texts.length === 0) return;
  keepDraft(null, joined([...texts, draftOf(null)].filter((text) => text !== "")));
  for (const text of texts) dropUnsent(null, text);
}

for (const slot of document.querySelectorAll("[data-icon]")) slot.prepend(icon(slot.dataset.icon));
comeBack();
new Chat().start();
