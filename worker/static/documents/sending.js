// Files on their way into a store: sent one after the other, then handed to the reader.

import { upload } from "../shared/upload.js";
import { unreadable } from "./kinds.js";
import { addFile } from "./stores.js";

const FILES_MAX = 50; // at once; more are what `firsttoken ingest` is for

export class Sending {
  /** `changed()` is called at every step, `arrived(storeId)` when a file is in its store. */
  constructor({ changed, arrived }) {
    this.changed = changed;
    this.arrived = arrived;
    this.entries = []; // {file, name, storeId, state, share, error, abort}, those that failed stay until dismissed
    this.busy = false;
  }

  of(storeId) {
    return this.entries.filter((entry) => entry.storeId === storeId);
  }

  add(storeId, files) {
    const room = FILES_MAX - this.entries.filter(({ state }) => state !== "failed").length;
    for (const file of files.slice(0, room)) {
      const error = unreadable(file.name); // known at once, while the reader may have others before it
      const state = error ? "failed" : "waiting";
      this.entries.push({ file, name: file.name, storeId, state, share: 0, error, abort: new AbortController() });
    }
    this.changed();
    this.run();
    return files.length - Math.max(0, Math.min(room, files.length));
  }

  drop(entry) {
    entry.abort.abort();
    this.entries = this.entries.filter((other) => other !== entry);
    this.changed();
  }

  async run() {
    if (this.busy) return;
    this.busy = true;
    for (let next; (next = this.entries.find(({ state }) => state === "waiting")) !== undefined; ) await this.send(next);
    this.busy = false;
  }

  async send(entry) {
    entry.state = "sending";
    const progress = (share) => {
      entry.share = share;
      this.changed();
    };
    try {
      const { id } = await upload(entry.file, { progress, signal: entry.abort.signal });
      await addFile(entry.storeId, id);
      this.entries = this.entries.filter((other) => other !== entry);
      this.arrived(entry.storeId);
    } catch (error) {
      Object.assign(entry, { state: "failed", error: error.message }); // one that was cancelled is not in the list any more
    }
    this.changed();
  }
}
