"""Finds the `[n]` of an answer and the span of a source that each one cites."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agents.message import Citation
from retrieval.passage import Passage

CITATIONS_MAX = 100  # of one answer: a model that repeats "[1]" must not fill the response

MARK = re.compile(r"\[(\d{1,3})\](?!\()")  # followed by "(", it is a link
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)  # in code, [1] is an index


def find_citations(text: str, sources: Sequence[Passage]) -> tuple[Citation, ...]:
    """Citations in order; `sources[i]` is cited as `[i + 1]`. Numbers without a source are left out."""
    found = [
        _citation(number, mark.span(), sources[number - 1])
        for number, mark in _marks(text)
        if 1 <= number <= len(sources)
    ]
    return tuple(found[:CITATIONS_MAX])


def count_unknown(text: str, sources: Sequence[Passage]) -> int:
    """The number of citations without a source; without any source, a number in brackets is not a citation."""
    return sum(not 1 <= number <= len(sources) for number, _ in _marks(text)) if sources else 0


def _marks(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    code = [match.span() for match in _CODE.finditer(text)]
    for mark in MARK.finditer(text):
        if not any(start <= mark.start() < end for start, end in code):
            yield int(mark[1]), mark


def _citation(number: int, span: tuple[int, int], source: Passage) -> Citation:
    return Citation(
        number=number,
        start_index=span[0],
        end_index=span[1],
        file_id=source.file_id,
        filename=source.filename,
        title=source.title,
        start_char=source.start_char,
        end_char=source.end_char,
    )
