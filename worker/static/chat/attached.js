// Texts and pictures that are files of a question: how they are sent, and how a stored question tells them apart again. Pure.

// As the worker itself writes the text of a file into a message. Within this page the text of a picture is its data URL.
const FILE = /\nFile ([^\n]{1,120}):\n/;
const PICTURE = /^data:image\/(png|jpeg|webp|gif);base64,[\w+/]+=*$/;

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

/** Several such texts as one question with all their files. */
export function joined(texts) {
  const all = texts.map(taken);
  return composed(all.map(({ question }) => question).join("\n\n"), all.flatMap(({ files }) => files));
}

export function isPicture({ text }) {
  return PICTURE.test(text);
}

/** The same without its pictures. */
export function withoutPictures(text) {
  const { question, files } = taken(text);
  return composed(question, files.filter((file) => !isPicture(file)));
}

/** What is sent to the worker: the text, or its parts if it has pictures. */
export function inputOf(text) {
  const pictures = taken(text).files.filter(isPicture);
  if (pictures.length === 0) return text;
  const shown = pictures.map((picture) => ({ type: "input_image", image_url: picture.text }));
  const content = [...shown, { type: "input_text", text: withoutPictures(text) }];
  return [{ type: "message", role: "user", content }];
}

/** The text of a message that the worker keeps. */
export function textOf({ content }) {
  const urls = content.map((part) => part.image_url).filter((url) => typeof url === "string");
  const texts = content.map((part) => part.text).filter((text) => text !== undefined);
  return composed(texts.join("\n"), urls.map((text, at) => ({ name: `picture ${at + 1}`, text })));
}
