// LaTeX stays as the model wrote it, with its backslashes: a token of the type "math". Nothing typesets it. A formula has
// at most 2000 characters, so that a text of openings that never close costs little.

const FORMULAS = [
  /\\\(([^]{1,2000}?)\\\)/y,
  /\\\[([^]{1,2000}?)\\\]/y,
  /\$\$([^$]{1,2000})\$\$/y,
  /\$(?![\s$])([^$\n]{1,2000})(?<![\s\\])\$(?!\d)/y, // not "$5 and $6"
];

export function math(parser) {
  parser.inline.ruler.before("escape", "math", (state, silent) => {
    const char = state.src[state.pos];
    if (char !== "\\" && char !== "$") return false;
    const formula = formulaAt(state.src, state.pos);
    if (formula === null) return false;
    if (!silent) state.push("math", "", 0).content = formula;
    state.pos += formula.length;
    return true;
  });
}

function formulaAt(text, at) {
  for (const pattern of FORMULAS) {
    pattern.lastIndex = at;
    const match = pattern.exec(text);
    if (match !== null) return match[0];
  }
  return null;
}
