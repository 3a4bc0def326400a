// Code in colours, by highlight.js: its core and each language are fetched when an answer has a closed block in it. Its
// emitter makes nodes, so no string becomes markup here either.

import { el } from "../shared/dom.js";

const FOLDER = new URL("../vendor/highlight/", import.meta.url);
const CHARS_MAX = 30_000; // what is longer would hold the page for longer than a frame or two
const NAMES = {
  bash: "sh shell zsh console", c: "h", cpp: "c++ cc hpp", csharp: "cs c#", css: "", diff: "patch", dockerfile: "docker",
  go: "golang", ini: "toml cfg conf", java: "", javascript: "js jsx mjs node", json: "json5 jsonc jsonl", kotlin: "kt",
  lua: "", makefile: "make mk", markdown: "md", php: "", powershell: "ps1 pwsh", python: "py python3 pycon", r: "",
  ruby: "rb", rust: "rs", sql: "postgresql postgres sqlite mysql", swift: "", typescript: "ts tsx", xml: "html svg xhtml",
  yaml: "yml",
};
const FILES = new Map(Object.entries(NAMES).flatMap(([file, also]) => [file, ...also.split(" ")].map((name) => [name, file])));
FILES.delete("");

class Emitter {
  constructor() {
    this.root = document.createDocumentFragment();
    this.at = this.root;
  }

  addText(text) {
    this.at.append(text);
  }

  startScope(scope) {
    this.at = this.at.appendChild(el("span", { class: `hl-${scope.split(".")[0].replace("_", "-")}` }));
  }

  endScope() {
    this.at = this.at.parentNode;
  }

  openNode(scope) {
    this.startScope(scope);
  }

  closeNode() {
    this.endScope();
  }

  __addSublanguage(emitter) {
    this.at.append(emitter.root);
  }

  finalize() {}
  toHTML() {
    return "";
  }
}

let fetching = null;
const languages = new Map(); // file -> promise

/** Colour the blocks of code in a node that will not change any more. */
export function highlight(node) {
  const blocks = node.matches("figure.code") ? [node] : node.querySelectorAll("figure.code");
  for (const block of blocks) colour(block.querySelector("code"), FILES.get(block.dataset.language?.toLowerCase()));
}

async function colour(code, language) {
  const text = code.textContent;
  if (language === undefined || text.length > CHARS_MAX) return;
  try {
    const core = await ready(language);
    if (code.textContent === text) code.replaceChildren(core.highlight(text, { language, ignoreIllegals: true })._emitter.root);
  } catch {
    // not to be had right now: it stays as it is
  }
}

async function ready(language) {
  fetching ??= fetchCore();
  const core = await fetching;
  if (!languages.has(language)) languages.set(language, fetchLanguage(core, language));
  await languages.get(language);
  return core;
}

async function fetchCore() {
  const core = await fetchModule("core");
  core.configure({ __emitter: Emitter });
  return core;
}

async function fetchLanguage(core, name) {
  core.registerLanguage(name, await fetchModule(name));
}

async function fetchModule(name) {
  return (await import(new URL(`${name}.js`, FOLDER).href)).default;
}
