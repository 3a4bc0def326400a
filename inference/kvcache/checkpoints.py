"""Checkpoints of recurrent and hybrid models: the state of the recurrent layers where other prompts may go on.

Keys and values of a prompt can be cut anywhere, a recurrent state only says what all tokens before it add up to. So it
is kept at the few positions that are worth it, and found by these tokens: together with the keys and values of any slot
or parked conversation that begins with them, it is what a new prompt goes on from. At the end of a prompt that was
answered, the logits are kept as well: the same prompt is answered again without a step.

All states of a model have one size, however many tokens they stand for. When there are too many, the one goes that
saves least: each counts the tokens that would have to be computed again without it, as often as it was used, and what
is not used grows old (GreedyDual-Size-Frequency, Cherkasova, HPL-98-69).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.kvcache.host_cache import INDEX_TOKEN_BYTES, Kept
from inference.kvcache.radix import RadixIndex, SharedPrefixes
from inference.prompt import CacheScope

# A prompt is computed in one more step for each checkpoint, and as many tokens as this cost about as much as a step.
CHECKPOINT_TOKENS_MIN = 32
# Of the host memory for conversations. A parked one has a state too, and without either the other is worth nothing.
CHECKPOINT_SHARE = 0.5
# Beside a conversation on disk: behind its instructions, and around its last two questions. Each may be as large as the
# keys and values of thousands of tokens.
WRITTEN_MAX = 5


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The recurrent `state` behind these tokens, of which it spares a prompt that begins like this the last `saves`;
    and, if they are a whole prompt, the `logits` [vocabulary] that its answer begins with."""

    tokens: tuple[int, ...]
    state: NDArray[np.uint8]
    saves: int
    logits: NDArray[np.float32] | None = None
    worth: float = 0.0
    uses: int = 0

    @property
    def kept(self) -> Kept:
        return Kept(len(self.tokens), self.state, self.logits)

    @property
    def bytes(self) -> int:
        return self.kept.bytes + INDEX_TOKEN_BYTES * len(self.tokens)


class Checkpoints:
    """Pure bookkeeping with a capacity in bytes."""

    def __init__(self, bytes_max: int, shared_prefixes: SharedPrefixes | None = None) -> None:
        self._bytes_max = bytes_max
        self._held: dict[int, Checkpoint] = {}
        self._index = RadixIndex(shared_prefixes)
        self._number = 0
        self._age = 0.0  # the worth of what was dropped last
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def keeps(self) -> bool:
        """Whether any are kept at all."""
        return self._bytes_max > 0

    def longest(self, tokens: Sequence[int], scope: CacheScope) -> Checkpoint | None:
        """The checkpoint of the longest prefix of these tokens."""
        keys = self._index.within(tokens, scope)
        return self._held[keys[0]] if keys else None

    def ending(self, prompt: Sequence[int], scope: CacheScope) -> Checkpoint | None:
        """The checkpoint of all of this prompt, if it was answered before."""
        found = self.longest(prompt, scope)
        return found if found and found.logits is not None and len(found.tokens) == len(prompt) else None

    def along(self, tokens: Sequence[int], scope: CacheScope) -> tuple[Kept, ...]:
        """What to write beside a conversation, the shortest first: where others part from it, and where it may be
        taken up again. The end of a prompt right behind another one is left out: only its logits are worth a place."""
        within = [self._held[key] for key in reversed(self._index.within(tokens, scope))]
        found = [each for each in within if each.logits is None or each.saves >= CHECKPOINT_TOKENS_MIN]
        chosen = [*found[:1], *found[1:][-WRITTEN_MAX + 1 :]]
        return tuple(each.kept for each in chosen)

    def use(self, checkpoint: Checkpoint) -> None:
        checkpoint.uses += 1
        checkpoint.worth = self._age + (1 + checkpoint.uses) * checkpoint.saves

    def put(
        self,
        tokens: Sequence[int],
        scope: CacheScope,
        state: NDArray[np.uint8],
        logits: NDArray[np.float32] | None = None,
    ) -> None:
        """Keep this state, not a copy of it, and the logits behind it; others may be dropped for it. If there is one
        for these tokens already, it gets the logits. If it is larger than all that may be kept, others will be too:
        none is wanted any more."""
        before = self.longest(tokens, scope)
        known = len(before.tokens) if before else 0
        made = Checkpoint(tuple(tokens), state, len(tokens) - known, logits)
        if state.nbytes > self._bytes_max:
            self._bytes_max = 0
        elif before and not made.saves:
            self.bytes -= before.bytes
            before.logits = logits if before.logits is None else before.logits
            self.bytes += before.bytes
        elif made.bytes <= self._bytes_max:
            made.worth = self._age + made.saves
            self._number += 1
            self._held[self._number] = made
            self._index.insert(self._number, made.tokens, scope)
            self.bytes += made.bytes
        while self.bytes > self._bytes_max:
            self._drop(min(self._held, key=lambda key: (self._held[key].worth, key)))

    def _drop(self, key: int) -> None:
        gone = self._held.pop(key)
        self._index.remove(key)
        self._age = max(self._age, gone.worth)
        self.bytes -= gone.bytes


def spaced(boundaries: Sequence[int], computed: int) -> tuple[int, ...]:
    """The boundaries behind the computed tokens that are far enough apart to be worth a step each."""
    kept = [computed]
    for boundary in sorted(boundaries):
        if boundary - kept[-1] >= CHECKPOINT_TOKENS_MIN:
            kept.append(boundary)
    return tuple(kept[1:])
