// Texts that are files of a question: how they are sent, and how a stored question tells them apart again. Pure.

// As the worker itself writes the text of a file into a message.
const FILE = /\nFile ([^\n]{1,120}):\n/;

/** The text of a question with its files, [{name, text}]. */
export function composed(question, files) {
  return [question, ...files.map(({ name, text }) => `File ${name}:\n${text}`)].join("\n");
}

/** {question, files} of such a text. */
export function taken(text) {
  const [question, ...pieces] = text.split(FILE);
  const files = [];
  for (let at = 0; at < pieces.length; at += 2) files.push({ name: pieces[at], text: pieces[at + 1] });
  return { question, files };
}
