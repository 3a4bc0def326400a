// Stored items -> an answer, through the same steps as a live one.

/** Show the items of one finished answer, oldest first. */
export function replay(items, answer) {
  const passages = passagesOf(items);
  if (passages.length > 0) answer.foundSources(passages);
  for (const item of items) {
    answer.startItem(item);
    if (item.type === "reasoning") answer.think(item.id, item.content.map((part) => part.text).join("\n"));
    if (item.type === "message") answer.write(item.id, item.content.map((part) => part.text ?? "").join(""));
    answer.finishItem(item);
    if (item.type === "message" && item.status === "incomplete") answer.note("This answer is incomplete.");
  }
}

/** The sources of an answer: the stored search results, with the exact spans that its citations carry. */
function passagesOf(items) {
  const byNumber = new Map();
  for (const item of items.filter(({ type }) => type === "file_search_call")) {
    (item.results ?? []).forEach((result, i) => byNumber.set(i + 1, fromResult(result, i + 1)));
  }
  for (const note of annotationsOf(items)) {
    const number = note.firsttoken_number;
    byNumber.set(number, { text: "", ...byNumber.get(number), ...fromAnnotation(note) });
  }
  return [...byNumber.values()].sort((a, b) => a.number - b.number);
}

function annotationsOf(items) {
  return items
    .filter(({ type }) => type === "message")
    .flatMap((message) => message.content.flatMap((part) => part.annotations ?? []))
    .filter((note) => Number.isInteger(note.firsttoken_number));
}

function fromResult(result, number) {
  const { file_id, filename, text } = result;
  return {
    number,
    file_id,
    filename,
    title: result.firsttoken_title,
    text,
    start_char: result.firsttoken_start_char,
    end_char: result.firsttoken_end_char,
  };
}

function fromAnnotation(note) {
  return {
    number: note.firsttoken_number,
    file_id: note.firsttoken_file_id,
    filename: note.firsttoken_filename,
    title: note.title,
    start_char: note.firsttoken_start_char,
    end_char: note.firsttoken_end_char,
  };
}
