"""Source code: kept as written; the file's classes and functions define the sections."""

from __future__ import annotations

import re
from collections.abc import Iterator

from retrieval.loaders.document import Document, Heading, clipped, sections
from retrieval.loaders.source import decode

_LANGUAGES = (
    ".py .pyi .js .mjs .cjs .jsx .ts .tsx .java .kt .kts .scala .go .rs .c .h .cc .cpp .cxx .hpp .cs .swift .rb .php "
    ".lua .sh .bash .zsh .sql .pl .pm .r .jl .ex .exs .erl .hs .ml .clj .dart .vue .svelte"
)
SUFFIXES = tuple(_LANGUAGES.split())


# The start of a definition in most languages, at the left margin or one level in.
_DEFINITION = re.compile(
    r"^(?P<indent>\t| {2,4})?"
    r"(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub(?:\([a-z]+\))?|unsafe|"
    r"override|open|sealed|data|const)[ \t]+)*"
    r"(?:class|def|func|function|fn|fun|struct|enum|trait|interface|impl|type|module|namespace|object|sub)\*?[ \t]+"
    r"(?:\([^)\n]{0,200}\)[ \t]*)?"  # the receiver of a method in Go
    r"(?P<name>[A-Za-z_$][\w$]{0,100}(?:(?:::|\.)[\w$]{1,100}){0,9})",
    re.MULTILINE,
)


def load(data: bytes, name: str) -> Document:
    """Raises UnreadableFile."""
    text = decode(data)
    return Document(name, "text/x-source", text, sections(_definitions(text), title=name, start=0, end=len(text)))


def _definitions(text: str) -> Iterator[Heading]:
    """A definition's own line belongs to its section: its heading takes no characters."""
    for match in _DEFINITION.finditer(text):
        yield Heading(2 if match["indent"] else 1, clipped(match["name"]), match.start(), match.start())
