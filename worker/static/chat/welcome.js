// The empty page: what this model is and can do, and questions that it can answer.

import { json } from "../shared/api.js";
import { bar } from "../shared/bar.js";
import { byId, el } from "../shared/dom.js";

// The shape of a usual answer, in shares of its time.
const USUAL = {
  edge: 1, hydrate: 2, retrieve: 9, assemble: 1, tokenize: 2, queue: 3, prefill: 20, first_token: 2, decode: 56,
  flush: 4,
};
const SMALL_PARAMETERS = 1e9; // a model below this knows little by heart
const TINY_PARAMETERS = 5e7; // and one below this only says what it was trained to say
const BETTER = 'make run ARGS="--model qwen3-4b-instruct"';
const SMALL = 'make run ARGS="--model smol-chat"'; // what comes with an adapter of ours, and needs no hub
const SAMPLE = "How long are traces kept?"; // of this project's own documentation

export class Welcome {
  /** `ask(question)` is called when the user picks an example; `options` know the chosen store. */
  constructor({ ask, options }) {
    this.node = byId("welcome");
    this.documentExample = byId("document-example");
    const pieces = Object.entries(USUAL).map(([name, duration_ms]) => ({ name, duration_ms, gap: false }));
    byId("motif").prepend(bar(pieces, 100));
    for (const example of this.node.querySelectorAll("[data-example]")) {
      example.addEventListener("click", () => ask(example.querySelector("b").textContent));
    }
    options.onStore((store) => this.offer(store).catch(() => {})); // an example fewer is no failure
  }

  show(visible) {
    this.node.hidden = !visible;
  }

  async load() {
    const { data: [model] } = await json("GET", "/v1/models");
    const { id, firsttoken_parameters: parameters, firsttoken_tools: shown, architecture } = model;
    byId("add-pictures").hidden = !architecture?.input_modalities.includes("image");
    for (const example of this.node.querySelectorAll("[data-with-tools]")) {
      const { withTools, parametersMin = 0 } = example.dataset;
      example.hidden = (withTools === "true") === (shown === "described") || parameters < Number(parametersMin);
    }
    if (parameters === undefined) return;
    byId("ability").textContent = ability(id, parameters, shown !== "described");
    byId("better").hidden = parameters >= SMALL_PARAMETERS;
    const small = parameters < TINY_PARAMETERS ? ["To chat a little, start the worker with ", el("code", {}, SMALL), ". "] : [];
    byId("better").replaceChildren(...small, "For real work, start it with a larger model: ", el("code", {}, BETTER));
  }

  /** An example for the documents, only if the store has a passage for it. `store` is {id, name, threshold} or null. */
  async offer(store) {
    if (store !== null && store.id === this.offered && !this.documentExample.hidden) return;
    this.documentExample.hidden = true;
    if (store === null) return;
    this.offered = store.id;
    const body = { query: SAMPLE, max_num_results: 1, ranking_options: { score_threshold: store.threshold } };
    const found = await json("POST", `/v1/vector_stores/${encodeURIComponent(store.id)}/search`, { body });
    if (this.offered !== store.id || found.data.length === 0) return;
    this.documentExample.querySelector("span").textContent = `Ask the documents in ${store.name}`;
    this.documentExample.querySelector("b").textContent = SAMPLE;
    this.documentExample.hidden = false;
  }
}

/** What a model of this size does, and what not. `tools`: whether it was trained to call them. */
function ability(id, parameters, tools) {
  const named = `${id} (${size(parameters)} parameters)`;
  if (parameters < TINY_PARAMETERS) {
    return `${named} is a tiny model, for trying things out. It answers questions like those below with tools and documents. It cannot really chat, and it knows nothing about the world.`;
  }
  const untrained = tools ? "" : " It was not trained to use tools.";
  if (parameters < SMALL_PARAMETERS) {
    const able = tools ? "It uses tools, cites documents and chats a little" : "It chats";
    return `${named} is a very small model. ${able}, but it knows little, invents what it does not know, and makes mistakes.${untrained}`;
  }
  return `${named} answers${tools ? ", uses tools" : ""} and cites your documents.${untrained}`;
}

/** 11 million, 4.02 billion. */
function size(parameters) {
  return parameters >= 1e9 ? `${(parameters / 1e9).toPrecision(3)} billion` : `${Math.round(parameters / 1e6)} million`;
}
