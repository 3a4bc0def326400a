// The latency page: an overview that refreshes itself, and single traces by address (#/trace/<id>).

import { ApiError, json } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";
import { moment } from "../shared/format.js";
import { recall, remember } from "../shared/preferences.js";
import { signInButton } from "../shared/sign-in-button.js";
import { themeSwitch } from "../shared/theme.js";
import { Chart } from "./chart.js";
import { Trials } from "./canaries.js";
import { CHARTS, offered } from "./charts.js";
import { askCosts, showCosts } from "./cost-board.js";
import { comparisonQuery, comparisonTable, isComparison } from "./comparison.js";
import { NAMES } from "./dimensions.js";
import { Filters } from "./filters.js";
import { Latest } from "./latest.js";
import { pairView } from "./pair-view.js";
import { spanTable } from "./spans.js";
import { listQuery, read, windowQuery, write } from "./state.js";
import { surfaceTable } from "./surfaces.js";
import { tiles } from "./tiles.js";
import { TraceList } from "./traces.js";
import { traceView } from "./trace-view.js";

const REFRESH_MS = 5000;
const MOVES = { earlier: { by: -0.5 }, later: { by: 0.5 }, wider: { times: 2 } };
const TRACES = 25;
const TRACES_MAX = 500; // in the list at once: beyond that, narrow it

class Ops {
  constructor() {
    this.state = read();
    if (!location.search) this.state.window = recall("ops-window", this.state.window);
    this.timer = null;
    this.turns = [];
    this.series = null;
    this.surfaces = [];
    this.signedOut = false; // whoever is signed out is not asked for by a timer
    this.aheadS = 0; // the worker's clock, of this machine's
    this.compared = null; // the trace for which another one is being chosen
    this.traces = new TraceList(byId("traces"));
    this.trials = new Trials();
    this.asking = {
      view: new Latest((busy) => byId("overview").classList.toggle("is-loading", busy)),
      list: new Latest((busy) => byId("answers").classList.toggle("is-loading", busy)),
      trace: new Latest(() => {}),
    };
    this.filters = new Filters(this.state, (changes) => this.change(changes));
    this.chart = new Chart(byId("chart"), byId("chart-legend"), {
      zoom: (start, end) => this.change({ start: String(start), end: String(end), at: "" }, true),
      pick: (start, end) => this.pick(start, end),
      open: (id) => (location.hash = `#/trace/${encodeURIComponent(id)}`),
    });
    choose("window", this.state.start ? "" : this.state.window, (value) => {
      remember("ops-window", value);
      this.change({ window: value, start: "", end: "", at: "" });
    });
    for (const [id, by] of Object.entries(MOVES)) byId(id).addEventListener("click", () => this.move(by));
    byId("more").addEventListener("click", () => this.more());
    byId("choose-none").addEventListener("click", () => this.compareWith(null));
    byId("live").addEventListener("change", () => this.schedule());
    document.addEventListener("visibilitychange", () => this.comeBack());
    addEventListener("focus", () => this.comeBack());
    document.addEventListener("keydown", (event) => this.step(event));
    addEventListener("hashchange", () => this.route());
    addEventListener("popstate", () => this.restore());
  }

  get traceId() {
    return addressed(/^#\/trace\/([^/]+)$/)?.[0] ?? null;
  }

  get pairIds() {
    return addressed(/^#\/compare\/([^/]+)\/([^/]+)$/);
  }

  get onOverview() {
    return this.traceId === null && this.pairIds === null;
  }

  route() {
    byId("overview").hidden = !this.onOverview;
    byId("trace").hidden = this.traceId === null;
    byId("pair").hidden = this.pairIds === null;
    if (this.pairIds !== null) return this.openPair(...this.pairIds);
    return this.traceId === null ? this.refresh() : this.openTrace(this.traceId);
  }

  /** Who had to sign in may have done so elsewhere. */
  comeBack() {
    if (document.hidden) return;
    if (this.signedOut) this.route();
    else this.refresh(true);
  }

  change(changes, moves = false) {
    Object.assign(this.state, changes);
    write(this.state, moves);
    this.turns = [];
    this.filters.restore();
    this.refresh();
  }

  /** Back and Forward. Also called when only the trace changes, which leaves the list as it is. */
  restore() {
    const before = JSON.stringify(this.state);
    Object.assign(this.state, location.search ? read() : { ...read(), window: recall("ops-window", this.state.window) });
    if (JSON.stringify(this.state) === before) return;
    this.turns = [];
    this.filters.restore();
    this.refresh();
  }

  /** `quietly`: by itself, and not because somebody asks for something else. */
  refresh(quietly = false) {
    if (!this.onOverview) return;
    this.showChoices();
    const query = windowQuery(this.state);
    const ask = (path, signal) => json("GET", `/ops/api/${path}?${query}`, { signal });
    this.guarded(() =>
      this.asking.view.run(
        (signal) =>
          Promise.all([ask("summary", signal), ask("series", signal), this.comparison(query, signal), askCosts(query, signal)]),
        ([summary, series, comparison, costs]) => {
          this.show(summary, series, comparison);
          showCosts(costs);
        },
        quietly,
      ),
    );
    // Who reads further down the list is not pulled back by newer answers.
    if (this.turns.length <= TRACES) this.list(quietly);
    this.schedule();
  }

  comparison(query, signal) {
    const { against } = this.state;
    return isComparison(against) ? json("GET", `/ops/api/comparison?${comparisonQuery(query, against, this.now)}`, { signal }) : null;
  }

  /** The present is in the last step of a stretch that nobody chose: where this machine's clock says so too, it is right. */
  setClock({ end, step_s: step }) {
    const own = Date.now() / 1000;
    this.aheadS = Math.min(Math.max(own, end - step), end) - own;
  }

  /** The worker's time, in Unix seconds. */
  get now() {
    return Date.now() / 1000 + this.aheadS;
  }

  schedule() {
    clearTimeout(this.timer);
    const stands = this.state.end && Number(this.state.end) < this.now; // a past that does not change
    if (byId("live").checked && this.onOverview && !stands && !this.signedOut) {
      this.timer = setTimeout(() => !document.hidden && this.refresh(true), REFRESH_MS);
    }
  }

  show(summary, series, comparison) {
    this.series = series;
    if (!this.state.start) this.setClock(series);
    this.surfaces = summary.surfaces;
    byId("tiles").replaceChildren(...tiles(summary));
    const { key_names: keyNames } = summary;
    const spans = comparison ? comparisonTable(comparison.rows, this.state, keyNames) : [spanTable(summary.spans)];
    byId("spans").replaceChildren(...(summary.spans.length > 0 ? spans : [empty()]));
    byId("surfaces").replaceChildren(surfaceTable(summary.surfaces));
    byId("by-surface").hidden = summary.surfaces.length === 0;
    this.filters.offer(summary.facets, keyNames);
    if (summary.is_operator) this.trials.refresh(); // nobody else is told
    this.draw();
  }

  /** The answers of one step, where they can be seen. */
  pick(start, end) {
    this.change({ at: `${start}-${end}` }, true);
    byId("answers").scrollIntoView({ block: "nearest" });
  }

  /** The chart and all else by so much of its length to the right, or with twice the length around its middle. */
  move({ by = 0, times = 1 }) {
    if (this.series === null) return;
    const { start, end } = this.series;
    const length = (end - start) * times;
    const middle = (start + end) / 2 + by * (end - start);
    const last = Math.min(middle + length / 2, Math.ceil(this.now)); // nothing is known of what is to come
    this.change({ start: String(Math.floor(last - length)), end: String(Math.ceil(last)), at: "" }, true);
  }

  draw() {
    const charts = offered(this.series);
    const chosen = charts.some(([name]) => name === this.state.chart) ? this.state.chart : "first-token";
    const radio = ([name, { title }]) =>
      el(
        "label", {},
        el("input", { type: "radio", name: "chart", value: name, checked: name === chosen }), el("span", {}, title),
      );
    const group = byId("charts");
    if (group.dataset.offered !== charts.map(([name]) => name).join()) {
      group.replaceChildren(...charts.map(radio));
      group.dataset.offered = charts.map(([name]) => name).join();
      group.onchange = (event) => {
        this.state.chart = event.target.value;
        write(this.state);
        this.draw();
      };
    }
    const picked = this.state.at ? this.state.at.split("-").map(Number) : null;
    this.chart.show(this.series, this.surfaces, CHARTS[chosen], picked);
  }

  /** Which stretch and which step are chosen, in words that take the choice back. */
  showChoices() {
    const { start, end, at } = this.state;
    for (const input of byId("window").querySelectorAll("input")) input.checked = !start && input.value === this.state.window;
    byId("clear").hidden = !(start || NAMES.some((name) => this.state[name]));
    byId("stretch").textContent = start ? `${moment(Number(start))} to ${moment(Number(end))}` : "";
    byId("clear-step").hidden = !at;
    if (at) byId("clear-step").textContent = `${at.split("-").map((s) => moment(Number(s))).join(" to ")} ×`;
  }

  list(quietly = false) {
    this.guarded(() =>
      this.asking.list.run(
        (signal) => json("GET", `/ops/api/traces?${listQuery(this.state, TRACES)}`, { signal }),
        (page) => this.showList(page.data, page),
        quietly,
      ),
    );
  }

  more() {
    const query = listQuery(this.state, TRACES);
    query.set("after", this.turns.at(-1).id);
    this.guarded(() =>
      this.asking.list.run(
        (signal) => json("GET", `/ops/api/traces?${query}`, { signal }),
        (page) => this.showList([...this.turns, ...page.data], page),
      ),
    );
  }

  showList(turns, { has_more: hasMore, usual }) {
    this.turns = turns;
    this.usual = { ...this.usual, ...usual };
    const path = this.compared === null ? "#/trace/" : `#/compare/${encodeURIComponent(this.compared)}/`;
    if (turns.length > 0) this.traces.show(turns, this.usual, (id) => path + encodeURIComponent(id));
    else byId("traces").replaceChildren(empty());
    byId("more").hidden = !hasMore || turns.length >= TRACES_MAX;
  }

  async openTrace(id) {
    clearTimeout(this.timer);
    byId("trace").replaceChildren(el("p", { class: "quiet" }, "Opening the trace"));
    await this.guarded(
      () =>
        this.asking.trace.run(
          (signal) => json("GET", `/ops/api/traces/${encodeURIComponent(id)}`, { signal }),
          (trace) => byId("trace").replaceChildren(...this.traceView(trace)),
        ),
      () => byId("trace").replaceChildren(wayBack()),
    );
    window.scrollTo(0, 0);
  }

  traceView(trace) {
    const compare = () => {
      this.compareWith(trace.id);
      location.hash = "#/";
    };
    return traceView(trace, this.around(trace.id), compare).filter(Boolean);
  }

  /** Rows of the list lead to the two answers beside each other while one is chosen. */
  compareWith(id) {
    this.compared = id;
    byId("choosing").hidden = id === null;
    if (this.turns.length > 0) this.showList(this.turns, { has_more: !byId("more").hidden });
  }

  async openPair(first, second) {
    clearTimeout(this.timer);
    this.compareWith(null);
    byId("pair").replaceChildren(el("p", { class: "quiet" }, "Opening the traces"));
    const ask = (id, signal) => json("GET", `/ops/api/traces/${encodeURIComponent(id)}`, { signal });
    await this.guarded(
      () =>
        this.asking.trace.run(
          (signal) => Promise.all([ask(first, signal), ask(second, signal)]),
          (traces) => byId("pair").replaceChildren(...pairView(...traces)),
        ),
      () => byId("pair").replaceChildren(wayBack()),
    );
    window.scrollTo(0, 0);
  }

  /** The answers beside one in the list that was left. */
  around(id) {
    const place = this.turns.findIndex((turn) => turn.id === id);
    return place < 0 ? {} : { before: this.turns[place - 1]?.id, after: this.turns[place + 1]?.id };
  }

  /** J and K lead through the traces, Escape back to the list. */
  step(event) {
    if (this.traceId === null || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") location.hash = "#/";
    const id = this.around(this.traceId)[{ j: "after", k: "before" }[event.key]];
    if (id) location.hash = `#/trace/${encodeURIComponent(id)}`;
  }

  /** Failures are shown above the page; its content stays. */
  async guarded(work, failed = () => {}) {
    try {
      await work();
      byId("warning").hidden = true;
      if (!this.signedOut) return;
      this.signedOut = false;
      this.schedule();
    } catch (error) {
      if (!(error instanceof ApiError)) console.error(error);
      this.signedOut = error.status === 401;
      if (this.signedOut) clearTimeout(this.timer);
      byId("warning").replaceChildren(advice(error), this.signedOut ? signInButton() : "");
      byId("warning").hidden = false;
      failed();
    }
  }
}

/** The ids in the address, or null where it is another one. */
function addressed(pattern) {
  const match = pattern.exec(location.hash);
  return match === null ? null : match.slice(1).map(decodeURIComponent);
}

function wayBack() {
  return el("p", { class: "back" }, el("a", { href: "#/" }, "All answers"));
}

function advice(error) {
  if (error.status === 404) return "This trace does not exist or has expired. The overview lists all answers.";
  return error instanceof ApiError ? error.message : "Something went wrong on this page. Reload it.";
}

function empty() {
  const link = el("a", { href: "/" }, "chat");
  return el("p", { class: "empty" }, "No answers here. Choose a longer window or fewer filters, or ask something in the ", link, ".");
}

function choose(id, value, changed) {
  const group = byId(id);
  for (const input of group.querySelectorAll("input")) input.checked = input.value === value;
  group.addEventListener("change", (event) => changed(event.target.value));
}

themeSwitch("theme");
new Ops().route();
