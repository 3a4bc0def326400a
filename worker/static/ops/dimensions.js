// What answers can be told apart by: how a choice of none is called, and the values that are known beforehand.

export const DIMENSIONS = {
  surface: { all: "All surfaces", group: "Another surface" },
  model: { all: "All models", group: "Another model" },
  agent: { all: "All agents", group: "Another agent" },
  tenant: { all: "All tenants", group: "Another tenant" },
  key: { all: "All API keys", group: "Another API key" },
  worker: { all: "All workers", group: "Another worker" },
  status: {
    all: "Any status", group: "Another status",
    values: {
      completed: "Completed", late: "Late", incomplete: "Incomplete", failed: "Failed", cancelled: "Cancelled", refused: "Refused",
      invalid: "Invalid",
    },
  },
  cache: { all: "Any cache use", group: "Another share cached", values: { hit: "Cached", partial: "Partly cached", miss: "Not cached" } },
  length: {
    all: "Any prompt length", group: "Another prompt length",
    values: { short: "Below 512 tokens", medium: "512 to 2,047 tokens", long: "2,048 to 8,191 tokens", huge: "8,192 tokens and more" },
  },
};

export const NAMES = Object.keys(DIMENSIONS);

/** The values of one that can be chosen; `facets` as in /ops/api/summary. One that is chosen stays, also where nothing has it. */
export function valuesOf(name, facets, chosen = "") {
  const known = DIMENSIONS[name].values;
  return [...new Set([...(known ? Object.keys(known) : facets[name]), ...(chosen ? [chosen] : [])])];
}

/** How a value is called; `keyNames` as in /ops/api/summary. */
export function labelOf(name, value, keyNames = {}) {
  if (name === "tenant") return value.slice(0, 8);
  if (name === "key") return keyNames[value] ?? value;
  return DIMENSIONS[name].values?.[value] ?? value;
}
