"""A request inside the engine: few fields, the rest derived."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from inference.detokenizer import TextStream
from inference.sampler import Sampler
from inference.sequence import Finish, Stamps


class Phase(StrEnum):
    WAITING = "waiting"  # no slot yet
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """`computed` counts tokens of prompt + generated whose KV is in the slot; the newest token never is."""

    prompt: list[int]
    max_tokens: int  # within what the context leaves
    sampler: Sampler
    text: TextStream
    salt: str = ""
    stamps: Stamps = field(default_factory=Stamps)
    slot: int | None = None
    reused: int = 0
    computed: int = 0
    generated: list[int] = field(default_factory=list)
    cancelled: bool = False
    finish: Finish | None = None

    @property
    def phase(self) -> Phase:
        if self.finish is not None:
            return Phase.FINISHED
        if self.slot is None:
            return Phase.WAITING
        return Phase.PREFILL if self.computed < len(self.prompt) else Phase.DECODE

    @property
    def uncomputed(self) -> list[int]:
        """Tokens that the next steps must compute: the rest of the prompt, or the newest token."""
        if self.computed < len(self.prompt):
            return self.prompt[self.computed :]
        return self.generated[self.computed - len(self.prompt) :]

    @property
    def held(self) -> list[int]:
        """The tokens whose KV is in the slot."""
        return [*self.prompt, *self.generated][: self.computed]
