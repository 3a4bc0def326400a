"""Where a token that is written stands in what was read. Some heads are shown these places while they learn.

A head that looks elsewhere hardly changes what is written, so the loss of tokens says next to nothing about where it
should look, and to find out takes longer than a short training: without this, no head behind the planted ones ever
found anything. Being told where to look is no secret from the model: the places are known from the answer alone.

Where a turn begins with words of its own, such as that nothing was found, nothing of what was read is to be copied.
Then these heads are shown the place where they stand, so that looking for what fits can also come back with nothing.

Supervised attention: Liu et al. 2016, "Neural machine translation with supervised attention".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.batches import LEARNT, Batch, learnt
from training.shape import Shape
from training.vocabulary import Vocabulary

RUN_MIN = 2  # tokens that agree: one alone stands in too many places
AHEAD = 2  # tokens after what is copied: "4 pages" tells what the 4 is
CONTINUED_SHARE = 0.3  # of the tokens that only go on copying are shown: where a copy begins is what is hard
SPACE = "\u0120"  # how a byte-level vocabulary writes it
NONE = -1  # in place of a source
COUNT_SHARE = 0.25  # of the tokens of a batch, at most

# (layer, queries [n, heads, head_dim], keys [n, kv heads, head_dim]); n counts through all rows
Watch: TypeAlias = Callable[[int, Tensor, Tensor], None]


@dataclass(frozen=True, slots=True)
class Copy:
    """A written token, where it stands in what was read, and the end of what is copied from there on."""

    token: int
    source: int
    end: int
    begins: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """Always of the same size: [rows, n] places that write, where what they write stands, and where that ends; NONE
    fills up."""

    places: NDArray[np.int64]
    sources: NDArray[np.int64]
    ends: NDArray[np.int64]


class Copies:
    """Finds what is copied, of tokens of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        first = {token.removeprefix(SPACE): i for i, token in reversed(list(enumerate(vocabulary.tokens)))}
        self._bare = np.array([first[token.removeprefix(SPACE)] for token in vocabulary.tokens], np.int32)

    def shown(self, batch: Batch, random: np.random.Generator) -> Shown:
        """Some of the copied tokens of each row."""
        rows, length = batch.ids.shape[0], batch.ids.shape[1] - 1
        count = int(length * COUNT_SHARE)
        places = np.zeros((rows, count), np.int64)
        sources, ends = np.full((rows, count), NONE), np.full((rows, count), NONE)
        for row in range(rows):
            all_of_it = self.copied(batch.ids[row], batch.marks[row])
            found = [copy for copy in all_of_it if copy.begins or random.random() < CONTINUED_SHARE]
            for i, number in enumerate(random.permutation(len(found))[:count]):
                copy = found[number]
                places[row, i], sources[row, i], ends[row, i] = copy.token - 1, copy.source, copy.end
        return Shown(places, sources, ends)

    def copied(self, ids: NDArray[np.int32], marks: NDArray[np.int8]) -> Iterator[Copy]:
        """Each learnt token that stands in what others wrote before its turn, and its place there: of those around
        which the most tokens agree with those around it, with a space before them or without, the last. A turn that
        begins with words of its own has its first token from where it stands."""
        bare = self._bare[ids]
        for start, end in learnt(marks):
            agree = (bare[start:end, None] == bare[None, :start]) & (marks[None, :start] != LEARNT)
            runs = np.where(agree, _runs(agree) + _runs(agree[::-1, ::-1])[::-1, ::-1] - 1, 0)
            sources = {
                start + i: int(np.flatnonzero(run == longest)[-1])
                for i, run in enumerate(runs)
                if (longest := run.max(initial=0)) >= RUN_MIN
            }
            if start and start not in sources:
                yield Copy(start, start - 1, start, begins=True)
            for token, source in sources.items():
                last = token
                while sources.get(last + 1) == source + last + 1 - token:
                    last += 1
                end = min(source + last + 1 - token + AHEAD, start)
                yield Copy(token, source, end, begins=sources.get(token - 1) != source - 1)


def _runs(agree: NDArray[np.bool_]) -> NDArray[np.int32]:
    """[written, read] -> how many agree in a line up to there, each one further than the one before."""
    runs = agree.astype(np.int32)
    for i in range(1, len(runs)):
        runs[i, 1:] += np.where(agree[i, 1:], runs[i - 1, :-1], 0)
    return runs


class Pointing:
    """Watches a model read, and tells how far the heads that are shown something looked from it.

    In each of the `layers` it is the last query head of every key head. That of the first key head is shown the very
    token. A token is known with what stands before it only, so those of the others may look at any of what is copied
    from there on: at the end of a sentence it is known what the sentence says, at its beginning it is not.
    """

    def __init__(self, shape: Shape, places: Tensor, sources: Tensor, ends: Tensor) -> None:
        self._shape, self._places, self._sources, self._ends = shape, places, sources, ends
        middle = shape.n_layer // 2
        self._layers = range(middle, max(middle + 1, shape.n_layer - 1))
        self._losses: list[Tensor] = []

    def watch(self, layer: int, queries: Tensor, keys: Tensor) -> None:
        if layer not in self._layers:
            return
        rows, size = len(self._places), self._shape.head_dim
        length = len(queries) // rows
        last = queries.view(rows, length, self._shape.n_kv, -1, size)[:, :, :, -1]
        looking = last.gather(1, self._places[:, :, None, None].expand(-1, -1, *last.shape[2:]))
        products = torch.einsum("rphd,rlhd->rhpl", looking * size**-0.5, keys.view(rows, length, -1, size)).float()
        read = torch.arange(length, device=products.device)
        later = read > self._places[:, :, None]
        looked = products.masked_fill(later[:, None], float("-inf")).log_softmax(-1)
        there = self._sources != NONE
        exactly = looked[:, 0].gather(2, self._sources.clamp(min=0)[:, :, None])[:, :, 0]
        within = (read >= self._sources[:, :, None]) & (read < self._ends[:, :, None]) | ~there[:, :, None]
        roughly = looked[:, 1:].masked_fill(~within[:, None], float("-inf")).logsumexp(-1)
        hit = torch.cat((exactly[:, None], roughly), 1).masked_fill(~there[:, None], 0.0)
        self._losses.append(-hit.sum() / (there.sum() * hit.shape[1]).clamp(min=1))

    @property
    def loss(self) -> Tensor:
        """The mean surprise at the places, in nats."""
        return torch.stack(self._losses).mean()
