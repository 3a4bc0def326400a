"""Documents to chunks: spans of the text that are small enough to embed whole and to cite. Pure.

There are two steps: `pieces` processes the whole text, however large and odd, so it should run where it can be killed;
`fitted` takes one piece of bounded size at a time, and needs the embedder's tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from retrieval.loaders.document import Document

CHUNK_CHARS_MAX = 900  # about 200 tokens of English: the embedder reads 256, heading included
CHUNK_TOKENS_MAX = 200
CHUNK_CHARS_MIN = 16  # dense text (numbers, other scripts) is split again, but never into smaller parts
WINDOW_CHARS = 50_000  # given to the splitter at once: a millisecond or two
CHUNKS_MAX = 20_000  # per file: 10 MB of text make about 12,000
# "9.27. " and "F.21.3. " before a title or a heading; without the last dot it may be a version.
_SECTION_NUMBER = re.compile(r"(?:^|(?<= > ))(?:[A-Z]\.)?(?:\d{1,4}\.)+\s+")


@dataclass(frozen=True, slots=True)
class Chunk:
    """text == document.text[start:end], below `heading` (a path, or "")."""

    heading: str
    text: str
    start: int
    end: int
    tokens: int


class Piece(NamedTuple):
    """document.text[start:end], of at most CHUNK_CHARS_MAX characters, is in document.sections[section]."""

    section: int
    start: int
    end: int


def pieces(document: Document) -> list[Piece]:
    """The text without parts that contain no word, split at the best places, never across a heading."""
    markdown = document.media_type == "text/markdown"
    found = (
        Piece(number, section.start + start, section.start + start + len(text))
        for number, section in enumerate(document.sections)
        for start, text in _pieces(document.text[section.start : section.end], CHUNK_CHARS_MAX, markdown)
    )
    return list(islice(found, CHUNKS_MAX))


def fitted(document: Document, pieces: Iterable[Piece], count: Callable[[str], int]) -> list[Chunk]:
    """Pieces as chunks, in text order; one of more than CHUNK_TOKENS_MAX tokens is split again. `count` returns a
    text's tokens in the embedder's vocabulary. Those beyond CHUNKS_MAX are dropped."""
    markdown = document.media_type == "text/markdown"
    chunks = (
        Chunk(document.sections[piece.section].heading, part, begin, begin + len(part), tokens)
        for piece in pieces
        for offset, part, tokens in _fitting(document.text[piece.start : piece.end], count, markdown)
        for begin in [piece.start + offset]
    )
    return list(islice(chunks, CHUNKS_MAX))


def embedded_text(title: str, chunk: Chunk) -> str:
    """The embedder's input: the passage below its document's title and headings, without the numbers of the sections:
    a token for each digit and dot, which stand for nothing. They are searched for as words.
    """
    return f"{_SECTION_NUMBER.sub('', passage_title(title, chunk.heading))}\n{chunk.text}"


def passage_title(title: str, heading: str) -> str:
    return f"{title} > {heading}" if heading else title


def _fitting(text: str, count: Callable[[str], int], markdown: bool) -> Iterator[tuple[int, str, int]]:
    """The piece itself, or parts of it within CHUNK_TOKENS_MAX: (offset, part, tokens)."""
    tokens = count(text)
    if tokens <= CHUNK_TOKENS_MAX or len(text) <= CHUNK_CHARS_MIN:
        yield 0, text, tokens
        return
    smaller = max(CHUNK_CHARS_MIN, min(len(text) * CHUNK_TOKENS_MAX // tokens, len(text) - 1) * 9 // 10)
    markdown = markdown and not text.startswith("|")  # rows without their head are a paragraph to it, cut within lines
    for start, piece in _pieces(text, smaller, markdown):
        for offset, part, part_tokens in _fitting(piece, count, markdown):
            yield start + offset, part, part_tokens


def _pieces(text: str, chars_max: int, markdown: bool) -> Iterator[tuple[int, str]]:
    """The splitter's time grows with the square of its input, so it gets windows. Each starts at the last chunk of the
    one before, which was split without knowing what follows.
    """
    splitter = MarkdownSplitter(chars_max) if markdown else TextSplitter(chars_max)
    begin = 0
    while begin < len(text):
        window = text[begin : begin + WINDOW_CHARS]
        found = splitter.chunk_indices(window)
        end = begin + len(window)
        if end < len(text) and len(found) > 1:
            end = begin + found.pop()[0]
        yield from ((begin + start, piece) for start, piece in found if any(map(str.isalnum, piece)))
        begin = end
