"""What retrieval hands up: a passage with its place in the source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Passage:
    """A span [start_char, end_char) of the extracted text of a file; `score` is the fused, reranked score."""

    vector_store_id: str
    file_id: str
    filename: str
    title: str  # the document's title, with the heading that the span stands under
    text: str
    start_char: int
    end_char: int
    tokens: int  # by the embedder's tokenizer
    score: float
