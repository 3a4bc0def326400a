"""Slots: the places in the KV cache, who uses them, and where a new prompt goes.

A slot is live while a request owns it. Afterwards it stays resident: its tokens remain in the cache for the next turn
of the same conversation, until another prompt needs the place and it is the least recently used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.prefix import PrefixIndex

# A resident slot is continued in place when what it would lose beyond the shared prefix is short (a half-finished
# or edited last turn); otherwise the prefix is forked, so that a shared system prompt does not cost its first
# conversation the history behind it.
TAIL_LOSS_MAX = 64
# Waiting for another request's prefill costs a step or two; below this many tokens computing them again is cheaper.
SHARED_PREFILL_MIN = 32


@dataclass(slots=True)
class Slot:
    """`tokens` are those indexed; the first `computed` of them are in the cache. Live: the whole prompt is indexed."""

    number: int
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    salt: str = ""
    live: bool = False
    used: int = 0  # order of last use


@dataclass(frozen=True, slots=True)
class Placement:
    """Put a prompt into `slot`: its first `reused` tokens come from `source` (the slot itself: nothing to copy)."""

    slot: int
    source: int
    reused: int


class Slots:
    """Pure bookkeeping; the engine does to the cache what a placement says.

    `rewinds` is false for recurrent and hybrid models, whose state cannot go back: there a slot is only continued from
    exactly where it stands.
    """

    def __init__(self, count: int, *, rewinds: bool = True) -> None:
        self._rewinds = rewinds
        self._slots = [Slot(number) for number in range(count)]
        self._index = PrefixIndex()
        self._clock = 0

    def __repr__(self) -> str:
        live, resident = (sum(s.live for s in self._slots), sum(not s.live and s.computed > 0 for s in self._slots))
        return f"<Slots {live} live | {resident} resident | {len(self._slots) - live - resident} empty>"

    def __getitem__(self, number: int) -> Slot:
        return self._slots[number]

    @property
    def resident(self) -> int:
        return sum(not slot.live and slot.computed > 0 for slot in self._slots)

    def place(self, prompt: Sequence[int], salt: str) -> Placement | None:
        """Choose and claim a slot. None: every slot is live, or a request that runs is just computing what this
        prompt begins with: waiting for it is cheaper than computing it twice."""
        # The last prompt token is always computed: its logits are what the first new token is drawn from.
        keys, matched = self._index.match(prompt[:-1], salt)
        holders = [self._slots[key] for key in keys]
        if not self._rewinds:
            holders = [slot for slot in holders if not slot.live and slot.computed == matched]
        best = max(holders, key=lambda slot: (slot.computed, not slot.live, -slot.number), default=None)
        reused = min(best.computed, matched) if best else 0
        if matched - reused >= SHARED_PREFILL_MIN and any(slot.live for slot in holders):
            return None
        target = self._target(best, reused)
        if target is None:
            return None
        self._claim(target, prompt, salt, reused)
        return Placement(target.number, best.number if best and reused else target.number, reused)

    def advance(self, number: int, tokens: int) -> None:
        """That many more tokens of a live slot are in the cache."""
        self._slots[number].computed += tokens

    def release(self, number: int, tokens: Sequence[int]) -> None:
        """The request is gone; the slot stays resident with these tokens, all of them in the cache."""
        slot = self._slots[number]
        slot.tokens, slot.computed, slot.live = list(tokens), len(tokens), False
        if slot.tokens:
            self._index.insert(number, slot.tokens, slot.salt)
        else:
            self._index.remove(number)
        self._touch(slot)

    def _target(self, best: Slot | None, reused: int) -> Slot | None:
        if best and reused and not best.live and best.computed - reused <= TAIL_LOSS_MAX:
            return best
        idle = [slot for slot in self._slots if not slot.live]
        others = [slot for slot in idle if slot is not best]
        empty = [slot for slot in others if not slot.computed]
        if empty:
            return empty[0]  # the lowest: rows of consecutive slots compute fastest
        return min(others or idle, key=lambda slot: slot.used, default=None)

    def _claim(self, slot: Slot, prompt: Sequence[int], salt: str, reused: int) -> None:
        slot.tokens, slot.computed, slot.salt, slot.live = list(prompt), reused, salt, True
        self._index.insert(slot.number, slot.tokens, salt)
        self._touch(slot)

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.used = self._clock
