// LaTeX between its delimiters is a token of the type "math" with all of its backslashes. A formula has at most 2000
// characters, so that a text of openings that never close costs little, and what is read at once at most 500 of them:
// each becomes some dozens of elements.

const FORMULAS_MAX = 500;

const FORMULAS = [
  { closed: "\\)", pattern: /\\\(([^]{1,2000}?)\\\)/y },
  { closed: "\\]", pattern: /\\\[([^]{1,2000}?)\\\]/y },
  { closed: "$$", pattern: /\$\$([^$]{1,2000})\$\$/y },
  { closed: "$", pattern: /\$(?![\s$])([^$\n]{1,2000})(?<![\s\\])\$(?!\d)/y }, // not "$5 and $6"
];

export function math(parser) {
  parser.inline.ruler.before("escape", "math", (state, silent) => {
    const char = state.src[state.pos];
    if (char !== "\\" && char !== "$") return false;
    if (state.env.formulas >= FORMULAS_MAX) return false;
    const formula = formulaAt(state);
    if (formula === null) return false;
    if (!silent) {
      state.push("math", "", 0).content = formula;
      state.env.formulas = (state.env.formulas ?? 0) + 1;
    }
    state.pos += formula.length;
    return true;
  });
}

function formulaAt(state) {
  state.lastClosed ??= FORMULAS.map(({ closed }) => state.src.lastIndexOf(closed)); // most openings have no end at all
  for (const [i, { pattern }] of FORMULAS.entries()) {
    if (state.lastClosed[i] <= state.pos) continue;
    pattern.lastIndex = state.pos;
    const match = pattern.exec(state.src);
    if (match !== null) return match[0];
  }
  return null;
}
