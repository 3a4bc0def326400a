"""Documents to chunks: spans of the text that are small enough to embed whole and to cite. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from retrieval.loaders.document import Document

CHUNK_CHARS_MAX = 900  # about 200 tokens of English: the embedder sees 256, heading included
CHUNK_TOKENS_MAX = 200
CHUNK_CHARS_MIN = 16  # dense text (numbers, other scripts) is split again, but never finer than this
CHUNKS_MAX = 20_000  # of one file: 10 MB of text make about 12,000


@dataclass(frozen=True, slots=True)
class Chunk:
    """text == document.text[start:end], stands under `heading` (a path, or "")."""

    heading: str
    text: str
    start: int
    end: int
    tokens: int


def split(document: Document, count: Callable[[str], int]) -> list[Chunk]:
    """Chunks in order of the text, never across a heading, never overlapping, without ones that hold no word.

    `count` gives the embedder's tokens. What exceeds CHUNKS_MAX is left out.
    """
    markdown = document.media_type == "text/markdown"
    chunks: list[Chunk] = []
    for section in document.sections:
        body = document.text[section.start : section.end]
        for start, text in _pieces(body, CHUNK_CHARS_MAX, markdown):
            for offset, part, tokens in _fitting(text, count, markdown):
                begin = section.start + start + offset
                chunks.append(Chunk(section.heading, part, begin, begin + len(part), tokens))
                if len(chunks) == CHUNKS_MAX:
                    return chunks
    return chunks


def embedded_text(title: str, chunk: Chunk) -> str:
    """What the embedder reads: the passage under the names that it stands under."""
    return f"{passage_title(title, chunk.heading)}\n{chunk.text}"


def passage_title(title: str, heading: str) -> str:
    return f"{title} > {heading}" if heading else title


def _fitting(text: str, count: Callable[[str], int], markdown: bool) -> Iterator[tuple[int, str, int]]:
    """The piece itself, or parts of it that keep within CHUNK_TOKENS_MAX: (offset, part, tokens)."""
    tokens = count(text)
    if tokens <= CHUNK_TOKENS_MAX or len(text) <= CHUNK_CHARS_MIN:
        yield 0, text, tokens
        return
    smaller = max(CHUNK_CHARS_MIN, min(len(text) * CHUNK_TOKENS_MAX // tokens, len(text) - 1) * 9 // 10)
    for start, piece in _pieces(text, smaller, markdown):
        for offset, part, part_tokens in _fitting(piece, count, markdown):
            yield start + offset, part, part_tokens


def _pieces(text: str, chars_max: int, markdown: bool) -> list[tuple[int, str]]:
    splitter = MarkdownSplitter(chars_max) if markdown else TextSplitter(chars_max)
    return [(start, piece) for start, piece in splitter.chunk_indices(text) if any(map(str.isalnum, piece))]
