"""A chunk that search found, with the evidence for it; what fusing and reranking put in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from retrieval.passage import Passage
from retrieval.split import passage_title


class ChunkKey(NamedTuple):
    vector_store_id: str
    file_id: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class Candidate:
    key: ChunkKey
    filename: str
    title: str
    heading: str
    text: str
    start: int
    end: int
    tokens: int
    cosine: float | None  # to the query; None when the query was not embedded
    coverage: float  # share of the query's words that the chunk holds, weighted by how rare they are; 0 to 1

    def passage(self, score: float) -> Passage:
        return Passage(
            vector_store_id=self.key.vector_store_id,
            file_id=self.key.file_id,
            filename=self.filename,
            title=passage_title(self.title, self.heading),
            text=self.text,
            start_char=self.start,
            end_char=self.end,
            tokens=self.tokens,
            score=score,
        )
