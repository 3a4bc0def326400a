"""Finds the `[n]` of an answer and says which span of which source each one means."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agents.message import Citation
from retrieval.passage import Passage

CITATIONS_MAX = 100  # of one answer: a model that only repeats "[1]" must not fill the page

_MARK = re.compile(r"\[(\d{1,3})\](?!\()")  # with "(" behind it, it is a link
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)  # there, [1] is an index


def find_citations(text: str, sources: Sequence[Passage]) -> tuple[Citation, ...]:
    """Citations in order; `sources[i]` is cited as `[i + 1]`. Numbers without a source are left out."""
    code = [match.span() for match in _CODE.finditer(text)]
    found = [
        _citation(int(mark[1]), mark.span(), sources[int(mark[1]) - 1])
        for mark in _MARK.finditer(text)
        if 1 <= int(mark[1]) <= len(sources) and not any(start <= mark.start() < end for start, end in code)
    ]
    return tuple(found[:CITATIONS_MAX])


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
