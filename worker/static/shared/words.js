// Spans in words: what happened while one was running.

const WORDS = {
  edge: "receiving the request", auth: "checking the credentials", hydrate: "loading the conversation",
  retrieve: "searching the documents", assemble: "putting the prompt together", tokenize: "cutting it into tokens",
  connect: "reaching an engine", engine: "an engine at work", queue: "waiting for a free place", prefill: "reading the prompt", first_token: "sending the first token",
  decode: "writing the answer", tools: "waiting for tools", flush: "storing the answer and sending its end",
  open: "opening the document stores", embed: "embedding", search: "searching", fuse: "merging what was found",
  rerank: "reranking", read: "fetching the passages", reread: "rereading the passages", compress: "shortening passages",
  prefill_prefix: "reading the prompt ahead", jwks: "fetching the keys of the issuer", gap: "outside of any span",
};

export function words(name) {
  if (name.startsWith("tool:")) return `running the tool ${name.slice(5)}`;
  return WORDS[name] ?? name;
}

export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
