// What answers cost beside how fast they began: a point for each surface, model and agent, and the same as a table.

import { json } from "../shared/api.js";
import { byId, el } from "../shared/dom.js";
import { count, duration } from "../shared/format.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640;
const HEIGHT = 220;
const EDGE = 44;
const WASTES = { speculation_share: "Speculation", cascade_share: "Cascades" }; // shown where there is any

/** The rows of the stretch that `query` names. */
export async function askCosts(query, signal) {
  return (await json("GET", `/ops/api/cost?${query}`, { signal })).data;
}

/** Shows them, or hides the board where there are none. */
export function showCosts(data) {
  byId("by-cost").hidden = data.length === 0;
  byId("costs").replaceChildren(...(data.length > 0 ? [picture(data), table(data)] : []));
}

/** The price of a thousand answers, or where nothing has a price the seconds of the engine that they take. */
function value(row, priced) {
  return (priced ? row.cost_per_1000 : row.engine_s_per_1000) ?? 0;
}

function picture(rows) {
  const priced = rows.some((row) => row.cost > 0);
  const points = rows.filter((row) => row.ttft_ms.p95 !== null);
  const most = { x: Math.max(1, ...points.map((row) => row.ttft_ms.p95)), y: Math.max(1e-9, ...points.map((row) => value(row, priced))) };
  const x = (ms) => EDGE + ((WIDTH - 2 * EDGE) * ms) / most.x;
  const y = (amount) => HEIGHT - EDGE - ((HEIGHT - 2 * EDGE) * amount) / most.y;
  const label = priced ? "cost per 1,000 answers" : "engine seconds per 1,000 answers";
  return svg(
    "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "cost-board", role: "img", "aria-label": `First token against ${label}; the table below has the numbers` },
    svg("line", { x1: EDGE, y1: HEIGHT - EDGE, x2: WIDTH - EDGE, y2: HEIGHT - EDGE, class: "axis" }),
    svg("line", { x1: EDGE, y1: EDGE, x2: EDGE, y2: HEIGHT - EDGE, class: "axis" }),
    svg("text", { x: WIDTH - EDGE, y: HEIGHT - 14, "text-anchor": "end" }, `first token, p95, up to ${duration(most.x)}`),
    svg("text", { x: EDGE, y: 22 }, `${label}, up to ${amount(most.y)}`),
    ...points.flatMap((row, index) => [
      svg("circle", { cx: x(row.ttft_ms.p95), cy: y(value(row, priced)), r: 5 }),
      svg("text", { x: x(row.ttft_ms.p95) + (x(row.ttft_ms.p95) > WIDTH / 2 ? -9 : 9), y: y(value(row, priced)) + 4, "text-anchor": x(row.ttft_ms.p95) > WIDTH / 2 ? "end" : "start" }, String(index + 1)),
    ]),
  );
}

function table(rows) {
  const priced = rows.some((row) => row.cost > 0);
  const wastes = Object.entries(WASTES).filter(([name]) => rows.some((row) => row[name] > 0));
  const head = ["No.", "Group", "Answers", "First token p95", priced ? "Cost per 1,000" : "Engine s per 1,000", ...wastes.map(([, text]) => text)];
  const placed = rows.filter((row) => row.ttft_ms.p95 !== null);
  return el(
    "table", { class: "numeric costs" },
    el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
    el(
      "tbody", {},
      ...rows.map((row) =>
        el(
          "tr", {},
          ...[
            placed.includes(row) ? String(placed.indexOf(row) + 1) : "", [row.surface, row.model, row.agent].filter(Boolean).join(" · "),
            count(row.answers), row.ttft_ms.p95 === null ? "–" : duration(row.ttft_ms.p95),
            amount(priced ? row.cost_per_1000 : row.engine_s_per_1000), ...wastes.map(([name]) => wasted(row[name])),
          ].map((text) => el("td", {}, text)),
        ),
      ),
    ),
  );
}

/** A share of the engine's time. */
function wasted(part) {
  return part === null ? "–" : `${(100 * part).toFixed(1)}%`;
}

function amount(number) {
  return number === null ? "–" : Number(number.toPrecision(3)).toString();
}

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, text] of Object.entries(attributes)) node.setAttribute(key, String(text));
  node.append(...children);
  return node;
}
