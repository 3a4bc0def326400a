// An answer that is still being written: what is settled stays in the page, only the open end is drawn again,
// at most once a frame.

import { highlight } from "./highlight.js";
import { parseBlocks } from "./parser.js";
import { patchChildren } from "./patch.js";
import { renderBlock } from "./render.js";

export class MarkdownStream {
  /** `onSettled(node)` is called for each block that can no longer change. */
  constructor(node, { cite, onSettled = () => {} }) {
    this.node = node;
    this.cite = cite;
    this.onSettled = onSettled;
    this.text = "";
    this.settledTo = 0; // characters of the text whose blocks are final
    this.openNodes = [];
    this.frame = null;
  }

  append(delta) {
    this.text += delta.replaceAll("\r", ""); // the parser counts lines
    this.frame ??= requestAnimationFrame(() => this.draw(false));
  }

  /** Draw everything that has come, now; the answer is complete. */
  finish() {
    cancelAnimationFrame(this.frame);
    this.draw(true);
  }

  draw(complete) {
    this.frame = null;
    const rest = this.text.slice(this.settledTo);
    const blocks = parseBlocks(rest, { open: !complete });
    const settled = complete ? blocks.length : settledCount(blocks, rest);
    const nodes = blocks.map((block) => renderBlock(block, { cite: this.cite }));
    this.openNodes = patchChildren(this.node, this.openNodes, nodes);
    for (const node of this.openNodes.splice(0, settled)) this.settle(node);
    this.settledTo += settled === blocks.length ? rest.length : blocks[settled].from;
  }

  settle(node) {
    highlight(node);
    this.onSettled(node);
  }
}

/** The last block is open; while its only line is unfinished it may yet turn out to belong to the one before. */
function settledCount(blocks, text) {
  const last = blocks.at(-1);
  if (last === undefined) return 0;
  const oneLine = !text.slice(last.from).includes("\n");
  return Math.max(0, blocks.length - (oneLine ? 2 : 1));
}
