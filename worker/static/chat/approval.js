// A call of a tool server that waits for the person: what it would do, and the two buttons that decide.

import { el } from "../shared/dom.js";

const SAID = { waiting: "Waiting for you", allowed: "Allowed", denied: "Not allowed", gone: "Not decided" };

export class Approval {
  /** `decided()` is called when the person has pressed one of the buttons. */
  constructor({ id, name, server_label: server, arguments: json }, decided) {
    this.id = id;
    this.approve = null;
    this.state = el("p", { class: "quiet", role: "status" });
    const press = (approve) => () => {
      this.show(approve);
      decided();
    };
    this.buttons = [
      el("button", { type: "button", class: "button primary", click: press(true) }, "Allow"),
      el("button", { type: "button", class: "button", click: press(false) }, "Don't allow"),
    ];
    const heading = el("h3", {}, `Use ${name} of ${server}?`);
    const asked = el("pre", { tabindex: "0" }, pretty(json));
    this.node = el("section", { class: "approval" }, heading, asked, this.state, el("div", { class: "row" }, ...this.buttons));
    this.tell("waiting");
  }

  /** What was decided, here or elsewhere. */
  show(approve) {
    this.approve = approve;
    this.tell(approve ? "allowed" : "denied");
  }

  /** The conversation has gone on without a decision. */
  settle() {
    if (this.approve === null) this.tell("gone");
  }

  tell(state) {
    this.node.dataset.state = state;
    this.state.textContent = SAID[state];
    for (const button of this.buttons) button.hidden = state !== "waiting";
  }
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
