"""What the engine needs of a device: `inference.llama.LlamaContext` is real, `testing.ScriptedBackend` a fake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


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


class Chunk(Protocol):
    """Consecutive tokens of one slot, to be computed in one step."""

    @property
    def slot(self) -> int: ...
    @property
    def position(self) -> int:
        """Of the first token."""
        ...

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def outputs(self) -> int:
        """After how many of the tokens, counted from the last, the logits are wanted."""
        ...

    @property
    def apart(self) -> bool:
        """Whether no other rows may be computed next to these, for a result that is the same to the last bit."""
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """The plainest chunk, for measurements and tests."""

    slot: int
    position: int
    tokens: Sequence[int]
    outputs: int = 1
    apart: bool = False


class Backend(Protocol):
    """KV slots and the step that computes tokens into them. Used by one thread."""

    slots: int
    context: int  # tokens per slot
    rows_max: int  # tokens per step
    exact: bool  # whether a row's result is the same whatever rows are computed with it
    streams: bool  # whether rows are computed together only as far as their slots follow each other
    rewinds: bool  # whether `truncate` can keep a part of a slot; false for recurrent and hybrid models

    def decode(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        """Compute chunks (sorted by slot, a slot once); returns logits [outputs, vocabulary] in chunk order,
        valid until the next call. Raises InferenceError; what the slots then hold behind the chunks' positions is
        undefined."""
        ...

    def fork(self, source: int, target: int, length: int) -> None:
        """Make `target` hold the first `length` tokens of `source`. Raises InferenceError."""
        ...

    def truncate(self, slot: int, length: int) -> None:
        """Forget what a slot holds from token `length` on. Raises InferenceError where `rewinds` is false."""
        ...

    def save(self, slot: int) -> NDArray[np.uint8]:
        """The state of everything a slot holds, as bytes."""
        ...

    def restore(self, slot: int, state: NDArray[np.uint8]) -> None:
        """Make a slot hold what was saved. Raises InferenceError, and the slot is empty then."""
        ...

    def regions(self, state: NDArray[np.uint8], tokens: int) -> Sequence[Region]:
        """Where that many tokens at the start lie in a saved state; nowhere, if unknown."""
        ...

    def surviving(self, tell: Callable[[str], None]) -> AbstractContextManager[None]:
        """For the thread that uses it. Where the device is lost for good, `tell` gets the reason in the middle of a
        call that never returns: the thread is lost with it, and the process is not."""
        ...

    def close(self) -> None: ...
