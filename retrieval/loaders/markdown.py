"""Markdown: kept as written (models read it well); headings define the sections."""

from __future__ import annotations

import re
from collections.abc import Iterator

from retrieval.loaders.document import Document, Heading, clipped, sections
from retrieval.loaders.source import decode

_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_FRONT_TITLE = re.compile(r"^title[ \t]*:[ \t]*(.+)$", re.MULTILINE | re.IGNORECASE)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HASHES = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*))?$")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
_NOT_A_HEADING = re.compile(r"[ \t]*(?:$|[>|#]|[-*+][ \t]|\d+[.)][ \t])| {4}|\t")
# Neither part crosses another bracket of its kind, except a pair within an address, so the time is linear.
_LINK = re.compile(r"!?\[([^\[\]]*+)\](?:\((?:[^()]|\([^()]*+\))*+\)|\[[^\[\]]*+\])")
HEADING_CHARS_READ = 1000  # a title has at most 120, but link targets are removed first


def load(data: bytes, name: str) -> Document:
    """`name` is the title if neither front matter nor a heading gives one. Raises UnreadableFile."""
    text = decode(data)
    front = _FRONT_MATTER.match(text)
    start = front.end() if front else 0
    headings = list(_headings(text, start))
    title = clipped(_front_title(front) or next((h.title for h in headings if h.title), "") or name)
    return Document(title, "text/markdown", text, sections(headings, title=title, start=start, end=len(text)))


def _front_title(front: re.Match[str] | None) -> str:
    found = _FRONT_TITLE.search(front[1]) if front else None
    return found[1].strip().strip("'\"") if found else ""


def _headings(text: str, start: int) -> Iterator[Heading]:
    """ATX ("## Title") and setext (underlined) headings outside fenced code, following CommonMark."""
    fence = ""
    previous, previous_start = "", start
    for line, line_start, line_end in _lines(text, start):
        opening = _FENCE.match(line)
        heading = None if fence else _HASHES.match(line)
        underline = None if fence else _UNDERLINE.match(line)
        if opening and not fence:
            fence = opening[1]
        elif opening and opening[1].startswith(fence) and not line[opening.end() :].strip():
            fence = ""
        elif heading:
            yield Heading(len(heading[1]), _plain((heading[2] or "").rstrip().rstrip("#")), line_start, line_end)
        elif underline and not _NOT_A_HEADING.match(previous):
            yield Heading(1 if underline[1][0] == "=" else 2, _plain(previous), previous_start, line_end)
        previous, previous_start = "" if fence or opening else line, line_start


def _lines(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """(line, its start, start of the next line)."""
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end], start, min(end + 1, len(text))
        start = end + 1


def _plain(heading: str) -> str:
    return clipped(_LINK.sub(r"\1", heading[:HEADING_CHARS_READ]).replace("`", "").replace("*", "").strip())
