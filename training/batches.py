"""Rows of tokens packed into batches by processes of their own: writing conversations takes longer than a GPU's step.

Nothing here imports PyTorch, so those processes stay small.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, Full
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from training.vocabulary import Vocabulary

Split: TypeAlias = Literal["train", "test"]

EMPTY, PROMPT, LEARNT, PROSE = -1, 0, 1, 2  # what a token is; EMPTY fills up a row
READY_MAX = 16  # batches that wait: enough to ride out a slow one, little memory
PATIENCE_S = 5.0  # between looks whether the other side is still there


class Rows(Protocol):
    def row(self, tokenizer: Tokenizer, length: int) -> tuple[list[int], list[int]]:
        """Token ids, at most `length` of them, and what each is."""
        ...


class Source(Protocol):
    """Goes to other processes, so it must be picklable. The same seed gives the same rows."""

    def __call__(self, seed: str, split: Split) -> Rows: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """`ids` [rows, length + 1], of which all but the last are read and all but the first predicted; `marks` alike."""

    ids: NDArray[np.int32]
    marks: NDArray[np.int8]


def packed(rows: Rows, tokenizer: Tokenizer, tokens: int, length: int) -> Batch:
    """As many rows of `length` as make up `tokens`."""
    count = tokens // length
    batch = Batch(np.zeros((count, length + 1), np.int32), np.full((count, length + 1), EMPTY, np.int8))
    for i in range(count):
        ids, marks = rows.row(tokenizer, length + 1)
        batch.ids[i, : len(ids)] = ids
        batch.marks[i, : len(marks)] = marks
    return batch


@dataclass(frozen=True, slots=True)
class Recipe:
    """Batches without end: `tokens` in each, in rows of one of the `lengths`, which are drawn by weight."""

    source: Source
    vocabulary: Vocabulary
    tokens: int
    lengths: Mapping[int, float]

    def batches(self, seed: str) -> Iterator[Batch]:
        tokenizer, rows, draw = self.vocabulary.tokenizer(), self.source(seed, "train"), random.Random(seed)
        while True:
            (length,) = draw.choices(list(self.lengths), list(self.lengths.values()))
            yield packed(rows, tokenizer, self.tokens, length)


def learnt(marks: NDArray[np.int8]) -> Iterator[tuple[int, int]]:
    """Start and end of all that is learnt together, in one row."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], marks == LEARNT, [False]))))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


class Feed:
    """Batches from as many processes as there are seeds. A context manager."""

    def __init__(self, recipe: Recipe, seeds: Sequence[str]) -> None:
        processes = multiprocessing.get_context("spawn")
        self._ready: multiprocessing.Queue[Batch] = processes.Queue(READY_MAX)
        self.waited_s = 0.0  # for batches, in all
        self._makers = [
            processes.Process(target=_make, args=(recipe, seed, self._ready), name=f"batches {seed}", daemon=True)
            for seed in seeds
        ]

    def __enter__(self) -> Feed:
        for maker in self._makers:
            maker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for maker in self._makers:
            maker.terminate()
        for maker in self._makers:
            maker.join()

    def take(self) -> Batch:
        """Raises ChildProcessError where a maker ended: it has printed why."""
        began = time.monotonic()
        while True:
            try:
                batch = self._ready.get(timeout=PATIENCE_S)
            except Empty:
                if dead := [maker.name for maker in self._makers if not maker.is_alive()]:
                    raise ChildProcessError(f"a process that makes {dead[0]!r} has ended") from None
            else:
                self.waited_s += time.monotonic() - began
                return batch


def _make(recipe: Recipe, seed: str, ready: multiprocessing.Queue[Batch]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever takes the batches decides when this ends
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each
    parent = multiprocessing.parent_process()
    for batch in recipe.batches(seed):
        while parent is not None and parent.is_alive():
            try:
                ready.put(batch, timeout=PATIENCE_S)
                break
            except Full:
                continue
        else:
            return
