// Ctrl+K: find a conversation by its words, or do something by its name.

import { byId, el } from "../shared/dom.js";
import { day } from "../shared/format.js";
import { icon } from "../shared/icons.js";
import { searchConversations } from "./conversations.js";
import { composes } from "./keys.js";

const PAUSE_MS = 150; // between the last key and the search in messages
const BEFORE_CHARS = 16; // of an excerpt before its first found word, which is to be seen on a phone
const AT_HAND = 6; // conversations that are offered before the worker has searched
const NOTHING = "Nothing found. The search matches beginnings of words in titles and messages.";

export class Palette {
  /** `commands`: [{image, label, act}]; `recent()` are the conversations at hand, newest first; `open(id)`. */
  constructor({ commands, recent, open }) {
    this.commands = commands;
    this.recent = recent;
    this.openConversation = open;
    this.dialog = byId("palette");
    this.input = byId("palette-input");
    this.list = byId("palette-list");
    this.timer = null;
    this.input.addEventListener("input", () => this.typed());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    document.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
      event.preventDefault();
      if (this.dialog.open) this.dialog.close();
      else if (document.querySelector("dialog[open]") === null) this.open();
    });
  }

  open() {
    this.input.value = "";
    this.show([]);
    this.dialog.showModal();
  }

  get text() {
    return this.input.value.trim();
  }

  /** What is at hand is shown at once, what the worker finds a moment later. */
  typed() {
    clearTimeout(this.timer);
    this.show([]);
    if (this.text !== "") this.timer = setTimeout(() => this.search(this.text), PAUSE_MS);
  }

  async search(text) {
    try {
      const { data } = await searchConversations(text);
      if (text !== this.text) return; // typed on meanwhile
      this.show(data);
      if (this.list.childElementCount === 0) this.say(NOTHING);
    } catch (error) {
      this.say(error.message);
    }
  }

  show(found) {
    const text = this.text.toLowerCase();
    const named = (label) => label.toLowerCase().includes(text);
    const known = new Set(found.map(({ id }) => id));
    const titled = this.recent().filter(({ id, metadata }) => !known.has(id) && named(metadata?.title ?? ""));
    const conversations = [...titled.slice(0, AT_HAND), ...found];
    const commands = this.commands.filter(({ label }) => named(label));
    this.list.replaceChildren(
      ...conversations.map((each) => this.option(() => this.openConversation(each.id), ...about(each))),
      ...commands.map(({ image, label, act }) => this.option(act, icon(image), el("span", { class: "palette-name" }, label))),
    );
    this.say("");
    this.mark(0);
  }

  option(act, ...children) {
    const choose = () => {
      this.dialog.close();
      act();
    };
    return el("li", { role: "option", "aria-selected": "false", click: choose }, ...children);
  }

  say(text) {
    byId("palette-none").textContent = text;
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (composes(event) || (step === undefined && event.key !== "Enter")) return;
    event.preventDefault();
    if (step === undefined) this.list.children[this.at]?.click();
    else this.mark(this.at + step);
  }

  mark(at) {
    const options = [...this.list.children];
    this.at = options.length === 0 ? 0 : (at + options.length) % options.length;
    options.forEach((option, n) => {
      option.id = `palette-option-${n}`;
      option.setAttribute("aria-selected", String(n === this.at));
    });
    options[this.at]?.scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", options[this.at]?.id ?? "");
  }
}

function about({ metadata, created_at: created, firsttoken_updated_at: updated, firsttoken_excerpt: excerpt = null }) {
  return [
    icon("bubble"),
    el(
      "span",
      { class: "palette-name" },
      el("span", {}, metadata?.title || "Untitled"),
      excerpt && el("small", { dir: "auto" }, ...marked(excerpt)),
    ),
    el("time", {}, day(updated ?? created)),
  ];
}

/** The text from a little before its first found word, all of them marked; places count Unicode characters. */
function marked({ text, marks }) {
  const characters = Array.from(text);
  const cut = (from, to) => characters.slice(from, to).join("");
  const begin = Math.max(0, (marks[0]?.[0] ?? 0) - BEFORE_CHARS);
  let at = begin;
  const nodes = marks.flatMap(([start, end]) => {
    const pieces = [cut(at, start), el("mark", {}, cut(start, end))];
    at = end;
    return pieces;
  });
  return [begin > 0 ? "…" : "", ...nodes, cut(at)];
}
