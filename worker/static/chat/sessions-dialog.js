// The browsers that are signed in, and signing them out.

import { byId, el } from "../shared/dom.js";
import { day } from "../shared/format.js";
import { icon } from "../shared/icons.js";
import { browserName, endSession, listSessions, signOut, signOutEverywhere } from "../shared/session.js";

export class SessionsDialog {
  constructor() {
    this.dialog = byId("sessions");
    this.list = byId("sessions-list");
    byId("sessions-close").addEventListener("click", () => this.dialog.close());
    byId("sessions-all").addEventListener("click", () => this.act(signOutEverywhere));
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
  }

  async open() {
    this.list.replaceChildren();
    this.say("");
    this.dialog.showModal();
    await this.act(() => this.load());
  }

  async load() {
    const sessions = await listSessions();
    const own = sessions.filter((session) => session.own).sort((a, b) => b.current - a.current);
    const others = sessions.filter((session) => !session.own);
    this.list.replaceChildren(...own.map((each) => this.row(each)), ...others.map((each) => this.row(each)));
    byId("sessions-all").hidden = own.length < 2;
  }

  row(session) {
    const end = session.current ? signOut : async () => {
      await endSession(session.id);
      await this.load();
    };
    const name = browserName(session.agent);
    return el(
      "li",
      { "data-current": String(session.current) },
      icon("screen"),
      el("span", { class: "session-name" }, name, el("small", {}, told(session))),
      el("button", { type: "button", class: "button", "aria-label": `Sign out ${name}`, click: () => this.act(end) }, "Sign out"),
    );
  }

  async act(work) {
    try {
      await work();
      this.say("");
    } catch (error) {
      this.say(error.message);
    }
  }

  say(text) {
    byId("sessions-warning").textContent = text;
    byId("sessions-warning").hidden = text === "";
  }
}

function told({ current, own, person, address, created_at: created, last_used_at: used }) {
  const when = current ? "This browser" : used === null ? `Signed in ${day(created)}, not used since` : `Last used ${day(used)}`;
  return [own ? null : (person ?? "Somebody else"), when, address].filter(Boolean).join(" · ");
}
