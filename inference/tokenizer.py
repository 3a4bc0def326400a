"""Text to token ids, each piece once.

Pieces are tokenised on their own: special tokens are recognised only in trusted ones, which is what keeps a user, a
tool or a document from writing the end of a turn. Since pieces repeat from turn to turn (system prompt, tools,
history), their ids are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain
from typing import Protocol

from inference.core import Extent, Part, Segment

# Characters of kept pieces: with their ids about 40 bytes a character, so some tens of megabytes at most.
CACHE_CHARS_MAX = 1_000_000


class Vocabulary(Protocol):
    """The part of a model that a tokenizer needs. Thread-safe."""

    @property
    def bos(self) -> int | None: ...

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]: ...


class Tokenizer:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bos = vocabulary.bos
        self._kept: OrderedDict[tuple[str, bool], tuple[int, ...]] = OrderedDict()
        self._kept_chars = 0
        self._lock = threading.Lock()  # long prompts are encoded in a worker thread
        self.hits = self.misses = 0

    def encode(self, segments: Sequence[Segment]) -> list[int]:
        """The ids of a whole prompt, with the model's beginning-of-sequence token where it wants one."""
        ids = list(chain.from_iterable(self._ids(segment) for segment in segments))
        return [self._bos, *ids] if self._bos is not None and ids[:1] != [self._bos] else ids

    def outline(self, segments: Sequence[Segment]) -> list[Extent]:
        """The parts of what `encode` makes of the same segments. A token that both a passage and the question reach
        into may be counted with either."""
        extents: list[Extent] = []
        for segment in segments:
            tokens = len(self._ids(segment))
            passages = min(tokens, self.count(segment.text[: segment.passage_chars])) if segment.passage_chars else 0
            extents += [Extent(Part.PASSAGES, passages)] if passages else []
            extents.append(Extent(segment.part, tokens - passages))
        missing = len(self.encode(segments)) - sum(extent.tokens for extent in extents)
        return [Extent(extents[0].part, missing), *extents] if missing else extents

    def count(self, text: str) -> int:
        """Number of tokens of untrusted text."""
        return len(self._ids(Segment(text, trusted=False)))

    def mark(self, text: str) -> int | None:
        """The token that is this text; None where it takes several."""
        ids = self._ids(Segment(text, trusted=True))
        return ids[0] if len(ids) == 1 else None

    def _ids(self, segment: Segment) -> tuple[int, ...]:
        if segment.ids is not None:
            return segment.ids
        key = (segment.text, segment.trusted)
        with self._lock:
            if (ids := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                self.hits += 1
                return ids
        ids = tuple(self._vocabulary.tokenize(segment.text, parse_special=segment.trusted))
        with self._lock:
            self._keep(key, ids)
        return ids

    def _keep(self, key: tuple[str, bool], ids: tuple[int, ...]) -> None:
        self.misses += 1
        if key not in self._kept:
            self._kept_chars += len(key[0])
        self._kept[key] = ids
        while self._kept_chars > CACHE_CHARS_MAX:
            (text, _), _ = self._kept.popitem(last=False)
            self._kept_chars -= len(text)
