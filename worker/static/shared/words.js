// Spans in words: what happened while one was running.

const WORDS = {
  edge: "receiving the request", auth: "checking the credentials", hydrate: "loading the conversation",
  retrieve: "searching the documents", assemble: "assembling the prompt", tokenize: "tokenizing the prompt",
  connect: "reaching an engine", engine: "running on an engine", queue: "waiting for a free slot", prefill: "reading the prompt", first_token: "sending the first token",
  first_call: "writing the name of a tool",
  decode: "writing the answer", tools: "waiting for tools", flush: "saving the answer and closing the stream",
  open: "opening the document stores", embed: "embedding", search: "searching", fuse: "merging what was found",
  rerank: "reranking", read: "fetching the passages", reread: "rereading the passages", compress: "shortening passages",
  first_answer: "coming to the answer", prefill_prefix: "reading the prompt ahead", jwks: "fetching the keys of the issuer", gap: "unaccounted for",
};

export function words(name) {
  if (name.startsWith("tool:")) return `running the tool ${name.slice(5)}`;
  return WORDS[name] ?? name;
}

export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
