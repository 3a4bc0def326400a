// A conversation that somebody has shared: read, and nothing else.

import { json } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";
import { themeSwitch } from "../shared/theme.js";
import { MarkdownStream } from "../markdown/stream.js";

async function open() {
  const token = location.hash.slice(1);
  try {
    show(await json("GET", `/v1/shared/${encodeURIComponent(token)}`));
  } catch (error) {
    byId("title").textContent = "This conversation is not shared";
    byId("note").textContent = error.status === 401 || error.status === 404
      ? "The link was revoked or not copied completely."
      : error.message;
    byId("messages").replaceChildren();
  }
}

function show({ title, shared_at, messages }) {
  const name = title ?? "Shared conversation";
  const date = new Date(shared_at * 1000).toLocaleDateString([], { year: "numeric", month: "long", day: "numeric" });
  document.title = `${name} · Firsttoken`;
  byId("title").textContent = name;
  byId("note").textContent = `Shared on ${date}. Answers are written by a language model and can be wrong.`;
  byId("messages").replaceChildren(...messages.map(({ role, text }) => (role === "user" ? question(text) : answer(text))));
}

function question(text) {
  return el("div", { class: "question" }, el("p", { dir: "auto" }, text));
}

function answer(text) {
  const node = el("div", { class: "prose" });
  const stream = new MarkdownStream(node, { cite: () => null, onSettled: () => {} });
  stream.append(text);
  stream.finish();
  return el("article", { class: "answer", "aria-label": "Answer" }, node);
}

addEventListener("hashchange", open);
themeSwitch("theme");
open();
