"""What the engine needs of a device; `inference.llama.LlamaContext` is the real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inference.picture import PictureEmbeddings


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a saved state: `rows` consecutive rows of `row_bytes` from `start` on. The first `width` bytes of each
    row belong to the prefix."""

    start: int
    rows: int
    row_bytes: int
    width: int

    @property
    def end(self) -> int:
        return self.start + self.rows * self.row_bytes


@dataclass(slots=True)  # not frozen: that takes three times as long to construct, and there is one per token
class Chunk:
    """Consecutive tokens of one slot, the first of them at `position`, to be computed in one step. The logits of the
    last `outputs` are needed.

    Those that are `apart` are computed without any others: for a result that is the same to the last bit, or because
    they are `embeddings`, which are computed in place of the tokens, which then only stand for them.
    """

    slot: int
    position: int
    tokens: Sequence[int]
    outputs: int = 1
    apart: bool = False
    embeddings: PictureEmbeddings | None = None


class Backend(Protocol):
    """KV slots and the step that computes tokens into them. Used by one thread."""

    slots: int
    context: int  # tokens per slot
    rows_max: int  # tokens per step
    exact: bool  # whether a row's result does not depend on the other rows of its batch
    streams: bool  # whether rows are computed together only for runs of consecutive slots
    rewinds: bool  # whether any part of a slot can be kept; recurrent and windowed layers need a checkpoint for that

    @property
    def drops(self) -> bool:
        """Whether tokens of a slot's last step can be dropped, such as rejected drafts."""

    @property
    def crowded(self) -> bool:
        """Whether its last step took all cores that this process may use: what runs beside the next holds it up."""

    def decode(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        """Compute chunks (sorted by slot, one per slot); returns logits [outputs, vocabulary] in chunk order, valid
        until the next call. Raises InferenceError; the slots' content behind the chunks' positions is then
        undefined."""

    def fork(self, source: int, target: int, length: int, checkpoint: NDArray[np.uint8] | None = None) -> None:
        """Make `target` hold the first `length` tokens of `source`; `checkpoint` as in `truncate`. Raises
        InferenceError."""

    def truncate(self, slot: int, length: int, checkpoint: NDArray[np.uint8] | None = None) -> None:
        """Drop the content of a slot from token `length` on. If `rewinds` is false, anything but nothing or all of it
        is kept only with the `checkpoint` of these `length` tokens. Raises InferenceError."""

    def checkpoint(self, slot: int) -> NDArray[np.uint8]:
        """What `truncate` cannot bring back by itself: the state of the recurrent layers, as bytes. It is the same in
        all slots, and memory of its own, which may be kept for long. Raises InferenceError."""

    def save(self, slot: int) -> NDArray[np.uint8]:
        """The state of a slot, as bytes."""

    def restore(self, slot: int, state: NDArray[np.uint8]) -> None:
        """Load a saved state into a slot. Raises InferenceError and then leaves the slot empty."""

    def regions(self, state: NDArray[np.uint8], tokens: int) -> Sequence[Region]:
        """Where the first `tokens` lie in a saved state; empty if unknown."""

    def surviving(self, tell: Callable[[str], None]) -> AbstractContextManager[None]:
        """Context for the thread that uses the device. If the device is lost for good, `tell` is called with the reason
        in the middle of a device call that never returns: the thread is lost, but not the process."""

    def rest(self) -> None:
        """Give back what only a busy device needs; the next step takes it again. Called by the thread that uses it."""

    def close(self) -> None: ...
