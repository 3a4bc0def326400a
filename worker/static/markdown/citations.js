// [1] is a citation: a token of the type "cite" with the number in `content`.

const CITATION = /\[(\d{1,3})\](?!\()/y;

export function citations(parser) {
  parser.inline.ruler.before("link", "cite", (state, silent) => {
    CITATION.lastIndex = state.pos;
    const match = CITATION.exec(state.src);
    if (match === null) return false;
    if (!silent) state.push("cite", "", 0).content = match[1];
    state.pos = CITATION.lastIndex;
    return true;
  });
}
