"""The result of retrieval: a passage with its position in the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Passage:
    """The span [start_char, end_char) of a file's extracted text; `score` is the fused, reranked score."""

    vector_store_id: str
    file_id: str
    filename: str
    title: str  # the document's title, with the heading of the span
    text: str
    start_char: int
    end_char: int
    tokens: int  # by the embedder's tokenizer
    score: float
    attributes: Mapping[str, Any] = field(default_factory=dict)  # of the file, as its owner set them
