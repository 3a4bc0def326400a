// In a text that is still being written (`env.open`), a `**` or a backtick that has not been closed yet counts as if it
// closed at the end of the text, so that an answer does not show marks that vanish a moment later.

const BACKTICK = 0x60;
const EMPHASIS = new Set([0x2a, 0x5f]); // * and _

export function openMarks(parser) {
  parser.core.ruler.before("inline", "find_open_end", findOpenEnd);
  parser.inline.ruler.before("backticks", "open_code", openCode);
  parser.inline.ruler2.after("balance_pairs", "close_strong", closeStrong);
}

/** Only a text that nothing follows can be unfinished. The inline rules know it by its source. */
function findOpenEnd({ tokens, env }) {
  const last = tokens.findLast(({ nesting }) => nesting === 0);
  env.openText = env.open && last?.type === "inline" ? last.content : undefined;
}

function isOpen(state) {
  return state.src === state.env.openText;
}

function openCode(state, silent) {
  if (state.src.charCodeAt(state.pos) !== BACKTICK || !isOpen(state)) return false;
  const run = /`+/y;
  run.lastIndex = state.pos;
  const [mark] = run.exec(state.src);
  const rest = state.src.slice(state.pos + mark.length);
  if (rest === "" || rest.includes("`")) return false;
  if (!silent) state.push("code_inline", "code", 0).content = rest;
  state.pos = state.posMax;
  return true;
}

/** Closes each `**` or `__` by the pair of marks that is missing, the innermost first. */
function closeStrong(state) {
  if (!isOpen(state)) return;
  const { delimiters } = state;
  for (let i = delimiters.length - 1; i > 0; i--) {
    if (!isPair(delimiters[i - 1], delimiters[i])) continue;
    for (const opener of [delimiters[i], delimiters[i - 1]]) opener.end = close(state, opener);
    i--;
  }
}

function isPair(first, second) {
  return [first, second].every(({ open, end, marker }) => open && end < 0 && EMPHASIS.has(marker)) &&
    first.marker === second.marker && first.token === second.token - 1;
}

function close(state, { marker }) {
  state.push("text", "", 0).content = String.fromCharCode(marker);
  const token = state.tokens.length - 1;
  return state.delimiters.push({ marker, length: 0, token, end: -1, open: false, close: true }) - 1;
}
