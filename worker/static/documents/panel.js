// The documents of a store: add, watch them being read, delete; and new stores.

import { byId, el } from "../shared/dom.js";
import { confirmDelete } from "../shared/confirm.js";
import { LookAgain } from "../shared/look-again.js";
import { sendingRow, storedRow } from "./file-row.js";
import { Sending } from "./sending.js";
import { createStore, deleteFile, listFiles, listStores } from "./stores.js";

export class DocumentsPanel {
  /** `options` know the chosen store; `options.load()` when there is another one. */
  constructor(options) {
    this.options = options;
    this.dialog = byId("documents");
    this.select = byId("documents-store");
    this.list = byId("documents-list");
    this.picker = byId("documents-picker");
    this.name = byId("documents-name");
    this.files = [];
    this.more = false;
    this.again = new LookAgain(() => this.look());
    this.sending = new Sending({ changed: () => this.show(), arrived: (id) => this.arrived(id) });
    byId("documents-close").addEventListener("click", () => this.dialog.close());
    byId("documents-choose").addEventListener("click", () => this.picker.click());
    byId("documents-new").addEventListener("submit", (event) => this.create(event));
    this.picker.addEventListener("change", () => {
      this.add([...this.picker.files]);
      this.picker.value = "";
    });
    this.select.addEventListener("change", () => this.choose(this.select.value));
    this.dialog.addEventListener("close", () => this.closed());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
  }

  get storeId() {
    return this.select.value || null;
  }

  /** With files, they are added to the store that is shown. */
  async open(files = []) {
    this.say("");
    if (!this.dialog.open) this.dialog.showModal();
    try {
      await this.loadStores(this.storeId ?? this.options.chosenStore?.id);
      if (this.storeId === null && files.length > 0) await this.begin("Documents");
      this.add(files);
      await this.look();
    } catch (error) {
      this.say(error.message);
    }
  }

  async loadStores(chosen) {
    const stores = await listStores();
    this.select.replaceChildren(...stores.map(({ id, name }) => el("option", { value: id }, name || id)));
    if (stores.some(({ id }) => id === chosen)) this.select.value = chosen;
    byId("documents-store-row").hidden = stores.length === 0;
  }

  async create(event) {
    event.preventDefault();
    const name = this.name.value.trim();
    if (name === "") return this.name.focus();
    try {
      await this.begin(name);
      this.name.value = "";
      byId("documents-more").open = false;
    } catch (error) {
      this.say(error.message);
    }
  }

  /** A new store, which the next question uses. */
  async begin(name) {
    const { id } = await createStore(name);
    await this.loadStores(id);
    await this.options.load(id);
    await this.choose(id);
  }

  async choose(id) {
    this.select.value = id;
    this.files = [];
    this.show();
    await this.look();
  }

  add(files) {
    if (files.length === 0) return;
    if (this.storeId === null) return this.open(files);
    const left = this.sending.add(this.storeId, files);
    if (left > 0) this.say(`${left} files were left out: add fewer at once, or use firsttoken ingest.`);
  }

  arrived(storeId) {
    if (storeId !== this.storeId) return;
    this.again.stop(); // what is new may be read in a moment
    this.look();
  }

  /** What is still being read is told beside the question from now on. */
  closed() {
    this.again.stop();
    if (this.reading) this.options.load().catch(() => {});
  }

  get reading() {
    return this.files.some(({ status }) => status === "in_progress");
  }

  /** What is in the store now; again in a moment while something is being read. */
  async look() {
    const { storeId } = this;
    if (storeId === null) return this.show();
    try {
      const { data, has_more: more } = await listFiles(storeId);
      if (storeId !== this.storeId) return;
      const waited = this.reading;
      [this.files, this.more] = [data, more];
      this.show();
      if (this.reading && this.dialog.open) this.again.later();
      else this.again.stop();
      if (waited && !this.reading) this.options.load(storeId).catch(() => {}); // the welcome page may now have an example for it
    } catch (error) {
      this.say(error.message);
    }
  }

  show() {
    const { storeId } = this;
    const sending = this.sending.of(storeId).map((entry) => sendingRow(entry, () => this.sending.drop(entry)));
    const stored = this.files.map((file) => storedRow(file, () => this.remove(file)));
    this.list.replaceChildren(...sending, ...stored);
    const empty = this.list.childElementCount === 0;
    byId("documents-note").textContent = this.more ? "The newest 100 are shown." : empty ? "No documents in this store yet." : "";
  }

  async remove(file) {
    const name = file.firsttoken_filename ?? file.id;
    if (!(await confirmDelete(`Delete this document?`, `“${name}” will be deleted permanently. Answers that cite it can no longer open it.`))) return;
    try {
      await deleteFile(file.id);
      this.files = this.files.filter((other) => other !== file);
      this.show();
    } catch (error) {
      this.say(error.message);
    }
  }

  say(text) {
    byId("documents-warning").textContent = text;
    byId("documents-warning").hidden = text === "";
  }
}
