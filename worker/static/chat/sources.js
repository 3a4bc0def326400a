// The passages an answer may use, as cards above it and as chips inside it.

import { plain } from "../markdown/plain.js";
import { el } from "../shared/dom.js";

export class Sources {
  /** `open(passage)` shows the passage in its document. */
  constructor(open) {
    this.open = open;
    this.cards = new Map(); // number -> {passage, card}
    this.cited = new Set();
    this.row = el("ol", { class: "source-cards" });
    this.heading = el("h2", { class: "label" });
    this.node = el("section", { class: "sources", "aria-label": "Sources", hidden: true }, this.heading, this.row);
  }

  /** [{number, file_id, filename, title, text, start_char, end_char}] */
  show(passages) {
    for (const passage of passages) {
      if (this.cards.has(passage.number)) continue;
      const card = this.card(passage);
      this.cards.set(passage.number, { passage, card });
      this.row.append(el("li", {}, card));
    }
    this.heading.textContent = this.cards.size === 1 ? "1 source" : `${this.cards.size} sources`;
    this.node.hidden = this.cards.size === 0;
  }

  card(passage) {
    return el(
      "button",
      { type: "button", class: "source-card", click: () => this.open(passage) },
      el("span", { class: "source-title" }, el("b", {}, String(passage.number)), passage.title || passage.filename),
      el("span", { class: "source-text" }, plain(passage.text ?? "")),
      el("span", { class: "source-file" }, passage.filename),
    );
  }

  /** The chip for `[number]` in the text, or null when there is no such source. */
  chip(number) {
    const entry = this.cards.get(number);
    if (entry === undefined) return null;
    this.cited.add(number);
    entry.card.classList.add("cited");
    const name = entry.passage.title || entry.passage.filename;
    return el(
      "button",
      {
        type: "button", class: "cite", title: name, "aria-label": `Source ${number}: ${name}`,
        click: () => this.open(entry.passage),
      },
      String(number),
    );
  }

  /** The answer is complete: what it did not use steps back; where it used none, they are all that there is. */
  settle() {
    if (this.cited.size > 0) this.node.classList.add("settled");
    else if (this.cards.size > 0) this.heading.append(": none cited, but one may hold the answer");
  }
}
