// How the answers of one conversation are made: kept in its metadata, so that every browser and program finds it. Pure.

const SETTINGS = "firsttoken:settings"; // JSON of all but the instructions
const INSTRUCTIONS = "firsttoken:instructions:"; // and a number: a value of metadata has 512 characters at most
const PIECE_CHARS = 512;
const PIECES_MAX = 4;
export const INSTRUCTIONS_CHARS_MAX = PIECE_CHARS * PIECES_MAX;

/** Nothing is set. */
export const UNSET = { model: null, instructions: null, store: null, temperature: null, topP: null, maxTokens: null, effort: null, servers: null };

/** As UNSET, with what was set. */
export function settingsIn(metadata = {}) {
  const pieces = Array.from({ length: PIECES_MAX }, (_, n) => metadata[INSTRUCTIONS + n] ?? "");
  return { ...UNSET, ...parsed(metadata[SETTINGS]), instructions: pieces.join("") || null };
}

/** The metadata with these settings in the place of those that were there. */
export function withSettings(metadata, { instructions, ...settings }) {
  const others = Object.entries(metadata ?? {}).filter(([key]) => key !== SETTINGS && !key.startsWith(INSTRUCTIONS));
  const set = Object.entries(settings).filter(([, value]) => value !== null);
  const characters = Array.from(instructions ?? "").slice(0, INSTRUCTIONS_CHARS_MAX);
  const pieces = [];
  for (let at = 0; at < characters.length; at += PIECE_CHARS) {
    pieces.push([INSTRUCTIONS + pieces.length, characters.slice(at, at + PIECE_CHARS).join("")]);
  }
  const kept = set.length === 0 ? [] : [[SETTINGS, JSON.stringify(Object.fromEntries(set))]];
  return Object.fromEntries([...others, ...kept, ...pieces]);
}

/** What of a turn stands before the question: also what is prefilled ahead of it. */
export function promptFields({ model, instructions, effort }) {
  return {
    ...(model !== null && { model }),
    ...(instructions !== null && { instructions }),
    ...(effort !== null && { reasoning: { effort } }),
  };
}

export function turnFields(settings) {
  const { temperature, topP, maxTokens } = settings;
  return {
    ...promptFields(settings),
    ...(temperature !== null && { temperature }),
    ...(topP !== null && { top_p: topP }),
    ...(maxTokens !== null && { max_output_tokens: maxTokens }),
  };
}

/** The store does not count: it is shown beside the question. */
export function isUnset({ store: _, ...settings }) {
  return Object.values(settings).every((value) => value === null);
}

/** Another program may have written there. */
function parsed(text) {
  try {
    const { model, store, temperature, topP, maxTokens, effort, servers } = JSON.parse(text ?? "{}") ?? {};
    return {
      model: typeof model === "string" ? model : null,
      store: typeof store === "string" ? store : null,
      topP: typeof topP === "number" ? topP : null,
      temperature: typeof temperature === "number" ? temperature : null,
      maxTokens: Number.isInteger(maxTokens) ? maxTokens : null,
      effort: typeof effort === "string" ? effort : null,
      servers: typeof servers === "string" ? servers : null,
    };
  } catch {
    return {};
  }
}
