// What belongs to the person and not to a conversation.

import { byId } from "../shared/dom.js";
import { openMenu } from "../shared/menu.js";
import { signOut } from "../shared/session.js";
import { importConversation } from "./import.js";
import { SessionsDialog } from "./sessions-dialog.js";

export class AccountMenu {
  /** `failed(error)`; `imported(conversation)` once there is one more. */
  constructor({ failed, imported }) {
    this.failed = failed;
    this.imported = imported;
    this.sessions = new SessionsDialog();
    this.picker = byId("import-file");
    this.picker.addEventListener("change", () => this.take());
    byId("account").addEventListener("click", ({ currentTarget }) => openMenu(currentTarget, this.entries));
  }

  get entries() {
    return [
      { image: "upload", label: "Import a conversation…", act: () => this.import() },
      { image: "screen", label: "Signed-in browsers…", act: () => this.sessions.open() },
      { image: "leave", label: "Sign out", act: () => signOut().catch(this.failed) },
    ];
  }

  import() {
    this.picker.click();
  }

  async take() {
    const [file] = this.picker.files;
    this.picker.value = "";
    if (file === undefined) return;
    try {
      this.imported(await importConversation(file));
    } catch (error) {
      this.failed(error);
    }
  }
}
