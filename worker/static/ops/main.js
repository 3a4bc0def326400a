// The latency page: an overview that refreshes itself, and single traces by address (#/trace/<id>).

import { ApiError, json } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";
import { recall, remember } from "../shared/preferences.js";
import { themeSwitch } from "../shared/theme.js";
import { spanTable } from "./spans.js";
import { surfaceTable } from "./surfaces.js";
import { tiles } from "./tiles.js";
import { traceTable } from "./traces.js";
import { traceView } from "./trace-view.js";

const REFRESH_MS = 5000;
const TRACES = 50;
const WINDOW_S = "3600";

class Ops {
  constructor() {
    this.windowS = recall("ops-window", WINDOW_S);
    this.order = "recent";
    this.timer = null;
    choose("window", this.windowS, (value) => {
      this.windowS = value;
      remember("ops-window", value);
      this.refresh();
    });
    choose("order", this.order, (value) => {
      this.order = value;
      this.refresh();
    });
    byId("live").addEventListener("change", () => this.schedule());
    document.addEventListener("visibilitychange", () => !document.hidden && this.refresh());
    addEventListener("hashchange", () => this.route());
  }

  get traceId() {
    const match = /^#\/trace\/([^/]+)$/.exec(location.hash);
    return match === null ? null : decodeURIComponent(match[1]);
  }

  route() {
    byId("overview").hidden = this.traceId !== null;
    byId("trace").hidden = this.traceId === null;
    return this.traceId === null ? this.refresh() : this.openTrace(this.traceId);
  }

  async refresh() {
    if (this.traceId !== null) return;
    const query = `window_s=${this.windowS}`;
    await this.guarded(async () => {
      const [summary, traces] = await Promise.all([
        json("GET", `/ops/api/summary?${query}`),
        json("GET", `/ops/api/traces?${query}&limit=${TRACES}&order=${this.order}`),
      ]);
      this.show(summary, traces.data);
    });
    this.schedule();
  }

  schedule() {
    clearTimeout(this.timer);
    if (byId("live").checked && this.traceId === null) {
      this.timer = setTimeout(() => !document.hidden && this.refresh(), REFRESH_MS);
    }
  }

  show(summary, traces) {
    byId("tiles").replaceChildren(...tiles(summary));
    byId("spans").replaceChildren(summary.spans.length > 0 ? spanTable(summary.spans) : empty());
    byId("surfaces").replaceChildren(surfaceTable(summary.surfaces));
    byId("by-surface").hidden = summary.surfaces.length === 0;
    const focused = document.activeElement?.closest?.("[data-trace]")?.dataset.trace;
    byId("traces").replaceChildren(traces.length > 0 ? traceTable(traces) : empty());
    if (focused) document.querySelector(`[data-trace="${CSS.escape(focused)}"] a`)?.focus({ preventScroll: true });
  }

  async openTrace(id) {
    byId("trace").replaceChildren(el("p", { class: "quiet" }, "Opening the trace"));
    await this.guarded(async () => {
      const trace = await json("GET", `/ops/api/traces/${encodeURIComponent(id)}`);
      if (id === this.traceId) byId("trace").replaceChildren(...traceView(trace));
    });
    window.scrollTo(0, 0);
  }

  /** Failures are shown above the page; its content stays. */
  async guarded(work) {
    try {
      await work();
      byId("warning").hidden = true;
    } catch (error) {
      if (!(error instanceof ApiError)) console.error(error);
      byId("warning").textContent = advice(error);
      byId("warning").hidden = false;
    }
  }
}

function advice(error) {
  if (error.status === 401) return "You are signed out. Run `firsttoken link` and open the link that it prints.";
  if (error.status === 404) return "This trace does not exist or has expired. The overview lists all answers.";
  return error instanceof ApiError ? error.message : "Something went wrong on this page. Reload it.";
}

function empty() {
  const link = el("a", { href: "/" }, "chat");
  return el("p", { class: "empty" }, "No answers in this window. Ask something in the ", link, ".");
}

function choose(id, value, changed) {
  const group = byId(id);
  for (const input of group.querySelectorAll("input")) input.checked = input.value === value;
  group.addEventListener("change", (event) => changed(event.target.value));
}

themeSwitch("theme");
new Ops().route();
