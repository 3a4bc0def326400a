"""A request inside the engine: few fields, the rest derived."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from inference.core import Acceptance, CacheScope, Finish, Forecast, Miss, Priority, Spent, Stamps, Steps
from inference.engine.detokenizer import TextStream
from inference.engine.sampler import Sampler

# A prompt's row computed alone differs in its last bits from the same row among others: never in exact requests.
EXACT_ROWS_MIN = 2


class Phase(StrEnum):
    WAITING = "waiting"  # no slot yet
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """`computed` counts tokens of prompt + generated whose KV is in the slot; the newest token is never one of them.

    A request that was preempted waits again, and what it generated is then part of what has to be computed.
    """

    prompt: list[int]
    max_tokens: int  # within what the context leaves
    sampler: Sampler
    text: TextStream
    scope: CacheScope
    priority: Priority = Priority.STANDARD
    stamps: Stamps = field(default_factory=Stamps)
    slot: int | None = None
    reused: int = 0  # of the prompt, when it was first placed
    miss: Miss | None = None  # why it was no more
    computed: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)
    reading: Steps = field(default_factory=Steps)  # up to the last token of the prompt
    writing: Steps = field(default_factory=Steps)
    spent: Spent = field(default_factory=Spent)
    generated: list[int] = field(default_factory=list)
    due_ns: int | None = None  # monotonic; its first token should be there then
    pace_s: float | None = None  # that may pass between two of its tokens; None: nothing is asked
    forecast: Forecast | None = None
    preempted: bool = False  # at some time
    keeps_slot: bool = False  # whatever waits: see FLOOR_NS in inference.engine.load
    deadline_ns: int | None = None  # monotonic; it ends then, waiting or running
    cancelled: bool = False
    finish: Finish | None = None

    def ending(self, now_ns: int) -> Finish | None:
        """Why it must end before the next step, if so."""
        if self.cancelled:
            return Finish.CANCELLED
        late = self.deadline_ns is not None and now_ns >= self.deadline_ns
        return Finish.DEADLINE if late else None

    def spare_s(self, now_ns: int) -> float:
        """Of one with a pace that has begun to answer: until its next token is due; less than 0 once it is late."""
        assert self.pace_s is not None
        return len(self.generated) * self.pace_s - (now_ns - self.stamps.first_token_ns) / 1e9

    @property
    def ahead(self) -> bool:
        """Only the prefix of a prompt that will come: nothing is sampled, and no client waits for it."""
        return self.priority is Priority.AHEAD

    @property
    def exact(self) -> bool:
        """Deterministic: see `batchable` and `reusable`."""
        return self.scope.exact

    @property
    def phase(self) -> Phase:
        if self.finish is not None:
            return Phase.FINISHED
        if self.slot is None:
            return Phase.WAITING
        return Phase.DECODE if self.decodes else Phase.PREFILL

    @property
    def decodes(self) -> bool:
        """Of one that has a slot: only its newest token is left to compute."""
        return bool(self.generated) and self.remaining == 1

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.generated]

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.prompt) + len(self.generated) - self.computed

    @property
    def uncomputed(self) -> list[int]:
        if self.computed < len(self.prompt):
            return [*self.prompt[self.computed :], *self.generated]
        return self.generated[self.computed - len(self.prompt) :]

    @property
    def batchable(self) -> int:
        """Tokens that may be computed together next. An exact request that lost its slot reads its prompt and then
        its answer again, which was computed token by token: together, they would differ in their last bits."""
        left = len(self.prompt) - self.computed
        return self.remaining if not self.exact or not self.generated else max(1, left)

    @property
    def recomputed(self) -> int:
        """Tokens at the end of the prompt that are always computed, even if they are cached."""
        return EXACT_ROWS_MIN if self.exact else 1

    @property
    def reusable(self) -> list[int]:
        """The tokens whose KV may be reused. What was computed a row at a time (the answer) differs in its last bits
        from the same tokens computed as prompt, so exact requests leave only their prompt."""
        return self.prompt if self.exact else self.tokens

    @property
    def kept(self) -> list[int]:
        """The reusable tokens that are in the slot."""
        return self.reusable[: self.computed]
