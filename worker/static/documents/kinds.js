// Which files can be read, by the end of their names: as retrieval/loaders/formats.py has them.

const KINDS = new Set(
  (
      ".adoc .bash .c .cc .cjs .clj .cpp .cs .csv .cxx .dart .docx .erl .ex .exs .go .h .hpp .hs .htm .html " +
      ".java .jl .js .jsx .kt .kts .lua .markdown .md .mdx .mjs .ml .org .pdf .php .pl .pm .py .pyi .r .rb " +
      ".rs .rst .scala .sh .sql .svelte .swift .text .ts .tsv .tsx .txt .vue .xhtml .zsh"
  ).split(" "),
);

/** Why a file of this name need not be sent at all; null for one that can be read. */
export function unreadable(name) {
  const kind = /.\.[^.]+$/.exec(name)?.[0].slice(1).toLowerCase();
  if (KINDS.has(kind)) return null;
  const what = kind ? `${kind} files cannot be read.` : "A file whose name has no ending cannot be read.";
  return `${what} Add PDF, Word, Markdown, HTML, CSV, text or source code.`;
}
