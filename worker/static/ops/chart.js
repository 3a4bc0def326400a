// One chart over time. Dragging chooses a stretch, a click the step below the pointer or the late answer under it.

import uPlot from "../vendor/uplot.js";
import { el } from "../shared/dom.js";
import { moment, ticks } from "../shared/format.js";

const HEIGHT = 230;
const HEIGHT_NARROW = 180;
const NARROW = 560;
const DOT_RADIUS = 3.5;
const DOT_RADIUS_NARROW = 2.5;
const DOT_REACH = 9; // pixels around a dot in which a click means it

const COLOURS = { p50: "--chart-1", p95: "--chart-2", p99: "--chart-3", fourth: "--chart-4", bar: "--chart-1", failed: "--danger" };

export class Chart {
  /** `zoom(start, end)`, `pick(start, end)` in Unix seconds, `open(traceId)`. */
  constructor(place, tip, { zoom, pick, open }) {
    Object.assign(this, { place, tip, zoom, pick, open, plot: null, drawn: null });
    this.probe = el("span", { class: "probe", hidden: true });
    place.after(this.probe);
    new ResizeObserver(() => this.fit()).observe(place);
    const redraw = () => this.drawn && this.show(...this.drawn);
    new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  /** `series` and `surfaces` as in /ops/api, `chart` one of CHARTS, `picked` the step that was clicked. */
  show(series, surfaces, chart, picked) {
    this.drawn = [series, surfaces, chart, picked];
    this.plot?.destroy();
    this.lines = chart.lines(series);
    this.dots = (chart.dots?.(series) ?? []).map((late) => ({ ...late, value: chart.dotValue(late) }));
    const paint = painter(this.probe);
    const highest = Math.max(...this.lines.flatMap(({ values }) => values.filter((v) => v !== null)), 0);
    const targets = chart.targets?.(surfaces, series) ?? [];
    const top = chart.most ?? (Math.max(highest, ...targets.map(({ value }) => value * 1.15)) * 1.06 || 1);
    this.place.replaceChildren();
    this.plot = new uPlot(
      {
        ...this.size(),
        padding: [10, 28, 0, 0], // half a label on the right
        legend: { show: false },
        cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false, setScale: false, dist: 6 } },
        scales: { x: { time: true, range: [series.start, series.end] }, y: { range: [0, top] } },
        axes: axes(chart, paint),
        series: [{}, ...this.lines.map((line) => lineOptions(line, chart, paint))],
        hooks: {
          drawClear: [(u) => band(u, picked, paint)],
          draw: [(u) => targets.forEach((each) => drawTarget(u, chart, each, paint)), (u) => this.drawDots(u, paint)],
          setSelect: [(u) => u.select.width > 6 && this.selected(u)],
          setCursor: [(u) => this.tell(u, series, chart)],
          ready: [(u) => u.over.addEventListener("click", () => this.clicked(u, series))],
        },
      },
      [series.at, ...this.lines.map(({ values }) => values)],
      this.place,
    );
  }

  size() {
    const width = Math.max(200, this.place.clientWidth);
    return { width, height: width < NARROW ? HEIGHT_NARROW : HEIGHT };
  }

  fit() {
    if (this.plot && this.plot.width !== this.size().width) this.plot.setSize(this.size());
  }

  selected(u) {
    const start = u.posToVal(u.select.left, "x");
    const end = u.posToVal(u.select.left + u.select.width, "x");
    this.justZoomed = true;
    this.zoom(Math.floor(start), Math.ceil(end));
  }

  clicked(u, series) {
    if (this.justZoomed) {
      this.justZoomed = false;
      return;
    }
    const dot = this.dotAt(u, u.cursor.left, u.cursor.top);
    if (dot) this.open(dot.id);
    else if (u.cursor.idx !== null) this.pick(series.at[u.cursor.idx], series.at[u.cursor.idx] + series.step_s);
  }

  dotAt(u, left, top) {
    const away = (dot) => Math.hypot(u.valToPos(dot.at, "x") - left, this.dotTop(u, dot) - top);
    const near = this.dots.filter((dot) => away(dot) <= DOT_REACH).sort((a, b) => away(a) - away(b));
    return near[0] ?? null;
  }

  /** Dots above the scale stand at its upper edge: one answer of a minute must not flatten all others. */
  dotTop(u, dot) {
    return Math.max(2, u.valToPos(dot.value, "y"));
  }

  drawDots(u, paint) {
    const ratio = devicePixelRatio;
    const { ctx, bbox } = u;
    ctx.save();
    ctx.fillStyle = paint("--danger");
    ctx.globalAlpha = 0.8; // where many lie upon each other, the lines below stay visible
    const radius = u.width < NARROW ? DOT_RADIUS_NARROW : DOT_RADIUS;
    for (const dot of this.dots) {
      const x = bbox.left + u.valToPos(dot.at, "x") * ratio;
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.arc(x, bbox.top + this.dotTop(u, dot) * ratio, radius * ratio, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.restore();
  }

  tell(u, series, chart) {
    const { idx, left, top } = u.cursor;
    if (idx === null || idx === undefined || left < 0) {
      this.tip.replaceChildren(...legend(this.lines, chart, null, this.dots.length));
      return;
    }
    const dot = this.dotAt(u, left, top);
    u.over.classList.toggle("on-dot", dot !== null);
    this.tip.replaceChildren(...legend(this.lines, chart, idx, this.dots.length, moment(series.at[idx])));
    if (dot) this.tip.append(el("span", { class: "key" }, `late: ${chart.tell(dot.value)}, click to open`));
  }
}

/** The lines by their names, and with the values of a step while the pointer is above it. */
function legend(lines, chart, index, dots, when = null) {
  const key = ({ label, style, values }) =>
    el("span", { class: "key", "data-line": style }, label, index !== null && el("b", {}, chart.tell(values[index])));
  const late = dots > 0 && index === null && el("span", { class: "key", "data-line": "late" }, "late answer");
  return [when && el("span", { class: "key when" }, when), ...lines.map(key), late].filter(Boolean);
}

function axes(chart, paint) {
  const common = { stroke: paint("--ink-3"), font: "12px system-ui, sans-serif", ticks: { show: false } };
  const grid = { stroke: paint("--line"), width: 1 };
  const splits = (u, values) => values.map((value) => (value === 0 && !chart.most ? "0" : chart.tell(value)));
  return [
    { ...common, grid: { show: false }, space: 70, size: 42, values: (u, moments, axis, space, step) => ticks(moments, step) },
    { ...common, grid, size: 62, gap: 6, space: 36, values: splits },
  ];
}

/** A value between two steps without one would have no line to be seen by: it is a point. */
function lonely(values) {
  const missing = (i) => values[i] === null || values[i] === undefined;
  return [...values.keys()].filter((i) => !missing(i) && missing(i - 1) && missing(i + 1));
}

function lineOptions({ style, values }, chart, paint) {
  const stroke = paint(COLOURS[style]);
  const width = style === "p50" ? 2 : 1.25;
  const shown = { stroke, width, spanGaps: false, points: { show: true, size: 5, fill: stroke, filter: () => lonely(values) } };
  if (!chart.bars) return shown;
  return { ...shown, fill: stroke, width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.8, 28], align: 1 }) };
}

function drawTarget(u, chart, { value, names }, paint) {
  const y = Math.round(u.valToPos(value, "y", true));
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = paint("--good");
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "right";
  const label = [`target ${names}${chart.tell(value)}`, bbox.left + bbox.width - 4, y - 5 * devicePixelRatio];
  ctx.setLineDash([]);
  ctx.strokeStyle = paint("--surface"); // keeps the words readable above lines
  ctx.lineWidth = 4 * devicePixelRatio;
  ctx.strokeText(...label);
  ctx.fillText(...label);
  ctx.restore();
}

function band(u, picked, paint) {
  if (!picked) return;
  const [left, right] = picked.map((at) => u.valToPos(at, "x", true));
  u.ctx.fillStyle = paint("--accent-soft");
  u.ctx.fillRect(left, u.bbox.top, Math.max(2, right - left), u.bbox.height);
}

/** A variable of the style sheet as the colour that it stands for in this theme. */
function painter(probe) {
  return (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
}
