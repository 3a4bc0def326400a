"""Where a text may be cut: between its sentences, list items and paragraphs; never inside a table or code. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_BREAK = re.compile(
    r"(?<=[.!?])[\"')\]*_`]*\s+(?=[\"'(\[*_`]*[A-Z0-9])"  # a sentence ends and the next begins with a capital
    r"|\n\s*\n"  # a paragraph ends
    r"|\n(?=[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t])"  # a list item begins
)
_WHOLE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[^\n]*\n.*?(?:^[ \t]*\1|\Z)"  # fenced code
    r"|(?:^[ \t]*\|[^\n]*(?:\n|\Z))+",  # a table
    re.MULTILINE | re.DOTALL,
)


class Span(NamedTuple):
    start: int
    end: int


def sentences(text: str) -> list[Span]:
    """Spans in order, without the white space around them; together they hold every other character of the text."""
    wholes = [match.span() for match in _WHOLE.finditer(text)]
    breaks = [
        match.end() for match in _BREAK.finditer(text) if not any(start < match.end() < end for start, end in wholes)
    ]
    bounds = zip([0, *breaks], [*breaks, len(text)], strict=True)
    spans = [_trimmed(text, start, end) for start, end in bounds]
    return [span for span in spans if span.start < span.end]


def _trimmed(text: str, start: int, end: int) -> Span:
    part = text[start:end]
    return Span(start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip()))
