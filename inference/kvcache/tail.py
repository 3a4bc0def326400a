"""Tails: states without the beginning that they have in common with others, which is kept once for all of them.

What belongs to a token stands in many places of a state, layer after layer, so a beginning is cut out in regions. A
tail remembers them: whatever they are, putting both parts back where they came from gives the same bytes. That the
beginning is the very same one is compared, not believed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Region:
    """`rows` pieces of `row_bytes`, one behind the other from `start` on. The first `width` bytes of each belong to the
    beginning."""

    start: int
    rows: int
    row_bytes: int
    width: int

    @property
    def end(self) -> int:
        return self.start + self.rows * self.row_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """What the first `tokens` have in the regions of a state."""

    tokens: int
    content: NDArray[np.uint8]

    @classmethod
    def of(cls, state: NDArray[np.uint8], regions: Sequence[Region], tokens: int) -> Root:
        return cls(tokens, _gathered([view for begins, view in _views(state, regions) if begins]))


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """`rest` is what a state of `size` bytes has beside its root."""

    root: Root
    regions: tuple[Region, ...]
    rest: NDArray[np.uint8]
    size: int

    @classmethod
    def of(cls, state: NDArray[np.uint8], regions: Sequence[Region], root: Root) -> Tail | None:
        """None where the state does not begin with the root."""
        views = list(_views(state, regions))
        at = 0
        for view in (view for begins, view in views if begins):
            held = root.content[at : at + view.size]
            if held.size != view.size or not np.array_equal(view, held.reshape(view.shape)):
                return None
            at += view.size
        if not at or at != root.content.size:
            return None
        return cls(root, tuple(regions), _gathered([view for begins, view in views if not begins]), state.size)

    def whole(self) -> NDArray[np.uint8]:
        """The state, byte for byte."""
        state = np.empty(self.size, np.uint8)
        sources, at = (self.rest, self.root.content), [0, 0]
        for begins, view in _views(state, self.regions):
            view[...] = sources[begins][at[begins] : at[begins] + view.size].reshape(view.shape)
            at[begins] += view.size
        return state


def _gathered(views: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """One behind the other. Each byte is copied once: they are hundreds of megabytes, and the engine waits."""
    content, at = np.empty(sum(view.size for view in views), np.uint8), 0
    for view in views:
        content[at : at + view.size].reshape(view.shape)[...] = view
        at += view.size
    return content


def _views(state: NDArray[np.uint8], regions: Sequence[Region]) -> Iterator[tuple[bool, NDArray[np.uint8]]]:
    """All bytes of a state in pieces, and whether each belongs to the beginning."""
    end = 0
    for region in regions:
        rows = state[region.start : region.end].reshape(region.rows, region.row_bytes)
        yield False, state[end : region.start]
        yield True, rows[:, : region.width]
        yield False, rows[:, region.width :]
        end = region.end
    yield False, state[end:]
