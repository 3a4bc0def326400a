"""Slots: the sequences of the KV cache, which requests use them, and where a new prompt goes.

A slot is live while a request owns it. Afterwards it stays resident: its tokens remain in the cache for the next turn
of the conversation until another prompt needs the slot and it is the least recently used. What would then be lost is
parked in host memory first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from inference.kvcache.checkpoints import CHECKPOINT_TOKENS_MIN, Checkpoint, Checkpoints, spaced
from inference.kvcache.host_cache import PARK_TOKENS_MIN, Entry, HostCache
from inference.kvcache.miss_report import SeenPrompts
from inference.kvcache.radix import RadixIndex, SharedPrefixes
from inference.prompt import CacheScope, Miss

# A resident slot is continued in place if little beyond the shared prefix would be lost (a half-finished or edited last
# turn). Otherwise the prefix is forked, so that a new conversation with a shared system prompt does not destroy the
# history behind it.
TAIL_LOSS_MAX = 64
# Tokens behind the shared prefix that are reported, enough to tell an edit from the same text in other tokens.
MISS_TOKENS = 32
# Waiting for another request's prefill costs a step or two; fewer tokens than this are cheaper to compute again.
SHARED_PREFILL_MIN = 32


UNUSED_SCOPE = CacheScope("")  # of a slot that was never used


@dataclass(frozen=True, slots=True, eq=False)
class PromptEnd:
    """What the first token of an answer is drawn from: the `logits` [vocabulary] behind the first `tokens` of a slot.
    With them, the same prompt needs no step, unless the slot has gone on and the model cannot rewind: then it needs a
    checkpoint.
    """

    tokens: int
    logits: NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Slot:
    """`tokens` are indexed; the first `computed` of them are in the cache. If live, the whole prompt is indexed."""

    number: int
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    scope: CacheScope = UNUSED_SCOPE
    live: bool = False
    ahead: bool = False  # used by a prefill ahead of its request
    offered: bool = False  # to host memory in a pause: not in the next one again, even if it could not be copied
    boundaries: tuple[int, ...] = ()  # where its state is to be kept, if the model cannot rewind
    end: PromptEnd | None = None  # of the prompt that was answered last
    used: int = 0  # order of last use

    def ends_at(self, tokens: int) -> bool:
        """Whether it is idle and holds no more than so many tokens: any model can go on there."""
        return not self.live and self.computed == tokens

    @property
    def worth_waiting(self) -> bool:
        """Whether other requests should wait for what it computes."""
        return self.live and not self.ahead


@dataclass(frozen=True, slots=True)
class Placement:
    """Put a prompt into `slot`. Its first `reused` tokens come from slot `source` (the same slot: nothing to copy) or
    from `restored`, which may have left host memory by then; with a `checkpoint`, there may be more tokens. With
    `logits`, they are the whole prompt, and the token behind it is drawn at once. `saves`: what to copy from the slot
    to host memory first.
    """

    slot: int
    source: int
    reused: int
    restored: Entry | None = None
    checkpoint: Checkpoint | None = None
    logits: NDArray[np.float32] | None = None
    saves: Saved | None = None
    miss: Miss | None = field(default=None, compare=False)  # why no more tokens are reused

    @property
    def state(self) -> NDArray[np.uint8] | None:
        """That of the recurrent layers behind the reused tokens, if it has to be brought back."""
        return self.checkpoint.state if self.checkpoint else None


@dataclass(frozen=True, slots=True)
class Saved:
    """The tokens of a slot whose state is to be saved."""

    slot: int
    tokens: tuple[int, ...]
    scope: CacheScope


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Where a prefix of a prompt is available: in a slot, or in a parked entry; `checkpoint` if it does not end with
    the prefix and cannot rewind. `logits` if it is a whole prompt that was answered before. `cached`: tokens of the
    prompt that slots or host memory have at all."""

    tokens: int = 0
    slot: Slot | None = None
    entry: int | None = None
    checkpoint: Checkpoint | None = None
    logits: NDArray[np.float32] | None = None
    cached: int = 0


NOTHING = _Prefix()


def _scattered(number: int, live: set[int]) -> tuple[int, int]:
    """Sort key for adding a slot to the live ones: how many runs they then form, relatively, and their extent."""
    return -len({number - 1, number + 1} & live), max(live | {number}) - min(live | {number})


class Slots:
    """Pure bookkeeping; the engine applies each placement to the cache.

    `rewinds` is false for recurrent and hybrid models, whose state cannot be truncated: there, a slot can only be
    continued from its exact end, or from a checkpoint.
    """

    def __init__(
        self,
        count: int,
        *,
        parked: HostCache | None = None,
        checkpoints: Checkpoints | None = None,
        shared_prefixes: SharedPrefixes | None = None,
        rewinds: bool = True,
        streams: bool = True,
    ) -> None:
        self._streams = streams
        self._rewinds = rewinds
        self._slots = [Slot(number) for number in range(count)]
        self._shared_prefixes = SharedPrefixes() if shared_prefixes is None else shared_prefixes
        self._index = RadixIndex(self._shared_prefixes)
        self._seen = SeenPrompts()
        self._clock = 0
        self.parked = HostCache(0) if parked is None else parked
        self.checkpoints = Checkpoints(0) if checkpoints is None else checkpoints

    def __getitem__(self, number: int) -> Slot:
        return self._slots[number]

    @property
    def resident(self) -> int:
        return sum(not slot.live and slot.computed > 0 for slot in self._slots)

    @property
    def tokens(self) -> int:
        """Number of tokens in the cache, of running requests and of resident slots."""
        return sum(slot.computed for slot in self._slots)

    @property
    def count(self) -> int:
        return len(self._slots)

    @property
    def index_bytes(self) -> int:
        """Memory of the indexes of parked entries and of prompts seen."""
        return self.parked.index_bytes + self._seen.bytes

    @property
    def end_bytes(self) -> int:
        """Memory of the logits at the ends of prompts, which a slot may share with the one that it was forked from."""
        ends = [slot.end for slot in self._slots]
        return sum({id(end.logits): end.logits.nbytes for end in ends if end}.values())

    @property
    def keeps_ends(self) -> bool:
        """Whether the ends of prompts are kept where the slot goes on with an answer."""
        return self._rewinds or self.checkpoints.keeps

    def uncached(self, prompt: Sequence[int], scope: CacheScope) -> int:
        """Number of tokens at the end of the prompt that no slot holds or is about to hold. What all tenants share may
        be in host memory as well: each conversation gets a copy of it."""
        held = self.longest(prompt, scope) if self.is_shared(prompt, scope) else self._index.match(prompt, scope)[1]
        return len(prompt) - held

    def prefix_owners(
        self, prompt: Sequence[int], scope: CacheScope, *, recomputed: int = 1, answers: bool = False
    ) -> set[int]:
        """The slots in which a request is computing a prefix of this prompt: waiting for it is cheaper than computing
        it twice. Of the same prompt nothing will be left to compute, so that is waited for however little it is, unless
        less would be left without. `recomputed` and `answers` as in `place`."""
        beginning = prompt[:-recomputed]
        keys, matched = self._index.match(beginning, scope)
        holders = [self._slots[key] for key in keys]
        if answers and self.keeps_ends and (same := self._computing(prompt, scope)):
            if self._whole(prompt, scope):
                return set()
            cached = self._prefix(beginning, scope, holders, matched).tokens
            if owners := {slot.number for slot in same if slot.computed >= cached}:
                return owners
        usable = {slot.number: self._coming(slot, matched) for slot in holders if slot.worth_waiting}
        if max(usable.values(), default=0) < SHARED_PREFILL_MIN:
            return set()
        cached = self._prefix(beginning, scope, holders, matched).tokens
        return {number for number, tokens in usable.items() if tokens - cached >= SHARED_PREFILL_MIN}

    def place(
        self,
        prompt: Sequence[int],
        scope: CacheScope,
        *,
        recomputed: int = 1,
        ahead: bool = False,
        boundaries: Sequence[int] = (),
        answers: bool = False,
    ) -> Placement | None:
        """Choose and claim a slot; None if every slot is live. The last `recomputed` tokens are computed in any case:
        the first new token is sampled from the logits of the very last one. `ahead`: a prefill ahead of its request,
        which may take long, so no request waits for it. `boundaries`: positions from which other prompts may go on.
        `answers`: nothing is wanted of the prompt but the token behind it, so the logits kept of the same one will do.
        """
        beginning = prompt[:-recomputed]
        keys, matched = self._index.match(beginning, scope)
        holders = [self._slots[key] for key in keys]
        prefix = (self._whole(prompt, scope) if answers else None) or self._prefix(beginning, scope, holders, matched)
        # A single row of an exact prompt may have been a whole prompt, computed alone.
        if prefix.tokens < recomputed and prefix.logits is None:
            prefix = replace(NOTHING, cached=prefix.cached)
        target = self._target(prefix)
        if target is None:
            return None
        placement = Placement(
            slot=target.number,
            source=(prefix.slot or target).number,
            reused=prefix.tokens,
            miss=self._miss(prompt, scope, keys, matched, prefix),
            restored=None if prefix.entry is None else self.parked[prefix.entry],
            checkpoint=prefix.checkpoint,
            logits=prefix.logits,
            saves=self._saves(target, prefix),
        )
        if prefix.checkpoint:
            self.checkpoints.use(prefix.checkpoint)
        target.tokens, target.computed, target.scope = list(prompt), prefix.tokens, scope
        target.live, target.ahead, target.offered = True, ahead, False
        target.boundaries = self._boundaries(beginning, scope, prefix, boundaries)
        target.end = None if prefix.logits is None or prefix.checkpoint else PromptEnd(len(prompt), prefix.logits)
        self._index.insert(target.number, target.tokens, scope)
        self._touch(target)
        return placement

    def keep_checkpoint(self, number: int, state: NDArray[np.uint8], logits: NDArray[np.float32] | None = None) -> None:
        """Keep the recurrent state of a slot, which is that behind its computed tokens; and the logits there, if these
        are a whole prompt."""
        slot = self._slots[number]
        self.checkpoints.put(slot.tokens[: slot.computed], slot.scope, state, logits)

    def keep_end(self, number: int, end: PromptEnd | None) -> None:
        """Keep the end of the prompt that a slot was given last, in place of that of an earlier one."""
        self._slots[number].end = end

    def advance(self, number: int, tokens: int) -> None:
        """Record that this many more tokens of a live slot are in the cache."""
        self._slots[number].computed += tokens

    def restart(self, number: int) -> None:
        """Record that nothing of a live slot is in the cache after all."""
        slot = self._slots[number]
        slot.computed, slot.end = 0, None

    def release(self, number: int, tokens: Sequence[int]) -> None:
        """The request has ended; the slot stays resident with these tokens, all of which are in the cache."""
        slot = self._slots[number]
        slot.tokens, slot.computed, slot.live = list(tokens), len(tokens), False
        if slot.end and slot.end.tokens > slot.computed:
            slot.end = None
        if not slot.ahead:  # only prompts that a client sent count as seen
            self._seen.add(tokens, slot.scope)
        if slot.tokens:
            self._index.insert(number, slot.tokens, slot.scope)
        else:
            self._index.remove(number)
        self._touch(slot)

    def lost(self, prompt: Sequence[int], scope: CacheScope) -> Miss:
        """The miss of a prompt whose cached prefix turned out to be unusable."""
        return Miss(0, self._seen.match(prompt, scope), tuple(prompt[:MISS_TOKENS]))

    def longest(self, prompt: Sequence[int], scope: CacheScope) -> int:
        """Length of the longest prefix that a slot holds or is computing, or host memory holds. Thread-safe."""
        return max(self._index.match(prompt, scope)[1], self.parked.longest(prompt, scope))

    def is_shared(self, tokens: Sequence[int], scope: CacheScope) -> bool:
        """Whether all tenants share all of these tokens."""
        return bool(tokens) and self._shared_prefixes.length(tokens, scope) == len(tokens)

    def offer(self) -> Saved | None:
        """The most recently used resident slot whose state host memory wants and has not been offered yet: now it
        is."""
        idle = (slot for slot in self._slots if not (slot.live or slot.offered))
        wanted = (slot for slot in idle if self.parked.wants(slot.tokens, slot.scope))
        slot = max(wanted, key=lambda slot: slot.used, default=None)
        if slot is None:
            return None
        slot.offered = True
        return Saved(slot.number, tuple(slot.tokens), slot.scope)

    def _prefix(self, beginning: Sequence[int], scope: CacheScope, holders: list[Slot], matched: int) -> _Prefix:
        """The longest computed prefix; of equal ones an idle slot is preferred, then a live one, then host memory."""
        slot = max(holders, key=lambda slot: (slot.computed, not slot.live, -slot.number), default=None)
        tokens = min(slot.computed, matched) if slot else 0
        entry, parked = self.parked.match(beginning, scope)
        cached = max(tokens, parked)
        if self._rewinds:
            found = [_Prefix(parked, entry=entry), _Prefix(tokens, slot=slot)]
        else:
            found = self._ends(holders, matched, entry, parked)
            if checkpoint := self.checkpoints.longest(beginning[:cached], scope):
                kept = len(checkpoint.tokens)
                where = _Prefix(kept, slot=slot) if kept <= tokens else _Prefix(kept, entry=entry)
                found.append(replace(where, checkpoint=checkpoint))
        best = max(found, key=lambda each: each.tokens - PARK_TOKENS_MIN * (each.entry is not None), default=NOTHING)
        worth = best.tokens >= (1 if best.entry is None else PARK_TOKENS_MIN)
        return replace(best if worth else NOTHING, cached=cached)

    def _whole(self, prompt: Sequence[int], scope: CacheScope) -> _Prefix | None:
        """Where all of a prompt is available with the logits behind it: a slot, of which an idle one is preferred, or
        a parked entry."""
        tokens = len(prompt)
        holders = [slot for slot in self._holding(prompt, scope) if slot.computed >= tokens]
        holders.sort(key=lambda slot: (slot.live, slot.number))
        for slot in holders:
            if slot.end and slot.end.tokens == tokens and (self._rewinds or slot.ends_at(tokens)):
                return _Prefix(tokens, slot=slot, logits=slot.end.logits, cached=tokens)
        if self._rewinds or (kept := self.checkpoints.ending(prompt, scope)) is None:
            return None
        whole = _Prefix(tokens, checkpoint=kept, logits=kept.logits, cached=tokens)
        if holders:
            return replace(whole, slot=holders[0])
        entry, parked = self.parked.match(prompt, scope)
        return replace(whole, entry=entry) if parked == tokens >= PARK_TOKENS_MIN else None

    def _computing(self, prompt: Sequence[int], scope: CacheScope) -> list[Slot]:
        """The slots in which requests are computing exactly this prompt."""
        same = [slot for slot in self._holding(prompt, scope) if len(slot.tokens) == len(prompt)]
        return [slot for slot in same if slot.worth_waiting and slot.computed < len(prompt)]

    def _holding(self, prompt: Sequence[int], scope: CacheScope) -> list[Slot]:
        """The slots that hold, or are about to hold, all of a prompt."""
        keys, matched = self._index.match(prompt, scope)
        return [self._slots[key] for key in keys] if matched == len(prompt) else []

    def _ends(self, holders: list[Slot], matched: int, entry: int | None, parked: int) -> list[_Prefix]:
        """The slots and the parked entry that end with what they share with a prompt: any model can go on there."""
        found = [_Prefix(matched, slot=slot) for slot in holders if slot.ends_at(matched)]
        if entry is not None and len(self.parked[entry].tokens) == parked:
            return [_Prefix(parked, entry=entry), *found]
        return found

    def _coming(self, slot: Slot, matched: int) -> int:
        """How many of the tokens that a prompt shares with a live slot it will be able to go on from."""
        if self._rewinds:
            return matched
        return max((at for at in slot.boundaries if slot.computed < at <= matched), default=0)

    def _boundaries(
        self, beginning: Sequence[int], scope: CacheScope, prefix: _Prefix, boundaries: Sequence[int]
    ) -> tuple[int, ...]:
        """Where to keep the state of a prompt that goes on from this prefix: also at its end, unless it is a checkpoint
        or near one. That costs no step, and nothing else will hold the state there once the prompt is computed."""
        if self._rewinds or prefix.logits is not None or not self.checkpoints.keeps:
            return ()
        behind = spaced([at for at in boundaries if at <= len(beginning)], prefix.tokens)
        last = self.checkpoints.longest(beginning[: prefix.tokens], scope)
        is_near = prefix.tokens - (len(last.tokens) if last else 0) < CHECKPOINT_TOKENS_MIN
        return behind if is_near else (prefix.tokens, *behind)

    def _miss(self, prompt: Sequence[int], scope: CacheScope, keys: set[int], matched: int, prefix: _Prefix) -> Miss:
        """What follows the reused tokens: in the prompt, and in the closest entry."""
        cached = prefix.tokens if self._rewinds else prefix.cached
        holders: list[Slot | Entry] = []
        if prefix.entry is not None:
            holders = [self.parked[prefix.entry]]
        elif cached == matched:
            holders = [self._slots[key] for key in keys]
        closest = [holder.tokens for holder in holders if holder.scope == scope]  # never reveal another tenant's tokens
        ends = any(len(tokens) == cached for tokens in closest)
        held = () if ends or not closest else tuple(closest[0][cached : cached + MISS_TOKENS])
        wanted = tuple(prompt[cached : cached + MISS_TOKENS])
        same = held[:1] == wanted[:1]  # an entry that continues like the prompt, but is not worth copying
        seen = self._seen.match(prompt, scope)
        return Miss(prefix.tokens, seen, wanted, () if same else held, cached - prefix.tokens)

    def _target(self, prefix: _Prefix) -> Slot | None:
        """A slot close to the live ones: the one with the prefix if it can be continued in place, then an empty one,
        then the least recently used."""
        donor, close = prefix.slot, self._close()
        stays = donor is not None and not donor.live and donor.computed - prefix.tokens <= TAIL_LOSS_MAX
        if stays and (donor in close or not self._rewinds):
            return donor
        return min(close, key=lambda slot: (slot is donor, slot.computed > 0, slot.used), default=None)

    def _close(self) -> list[Slot]:
        """The idle slots that would leave the live ones least scattered.

        With streams, the rows of a step are computed together only for runs of consecutive slots. Each further run
        reads the whole model again, which costs more than moving a conversation, but not more than losing one.
        """
        idle = [slot for slot in self._slots if not slot.live]
        if not (self._streams and self.parked.keeps):
            return idle
        live = {slot.number for slot in self._slots if slot.live}
        scattered = {slot: _scattered(slot.number, live) for slot in idle}
        least = min(scattered.values(), default=None)
        return [slot for slot in idle if scattered[slot] == least]

    def _saves(self, target: Slot, prefix: _Prefix) -> Saved | None:
        """What would be lost in the slot, if host memory wants it."""
        kept = prefix.tokens if target is prefix.slot else 0
        if target.computed - kept <= TAIL_LOSS_MAX:
            return None
        if not self.parked.wants(target.tokens, target.scope):
            return None
        return Saved(target.number, tuple(target.tokens), target.scope)

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.used = self._clock
