"""The next step, as the scheduler plans it and the executor computes it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inference.backend import Chunk
from inference.kvcache.slots import Placement
from inference.request import Phase, Request


@dataclass(slots=True, kw_only=True)
class Work(Chunk):
    """Tokens of one request to compute in this step. `outputs` is 0 in the middle of a prompt, 1 where a token is
    sampled, one more for each drafted token, and before these come the `scored` ones, of prompt tokens whose log
    probabilities are wanted. `forced`: the draft consists of tokens for which the grammar leaves no choice.

    `apart`: prompt tokens of an exact request (see EXACT_ROWS_MIN), so that no other stream determines how their rows
    are split, and the vectors of a picture, which cannot be in one batch with tokens.
    """

    request: Request
    forced: bool = False
    scored: int = 0

    @property
    def sampled(self) -> int:
        """Rows from which a token may be sampled."""
        return self.outputs - self.scored

    @property
    def draft(self) -> Sequence[int]:
        return self.tokens[len(self.tokens) - self.sampled + 1 :] if self.sampled > 1 else ()

    def with_draft(self, draft: Sequence[int], *, forced: bool = False) -> Work:
        return replace(self, tokens=[*self.tokens, *draft], outputs=1 + len(draft), forced=forced)


@dataclass(slots=True)
class Plan:
    """A step to execute: first place the requests, then compute the work, which is sorted by slot."""

    placements: list[tuple[Request, Placement]] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    preempted: int = 0

    @property
    def decodes_only(self) -> bool:
        """Whether the step has no prompt tokens."""
        return all(work.request.phase is Phase.DECODE for work in self.work)

    @property
    def rows(self) -> int:
        return sum(len(work.tokens) for work in self.work)

    def cost_follows_rows(self, *, parted: bool) -> bool:
        """Whether its duration says how long other steps with as many rows take. `parted`: slots have KV streams of
        their own, so drafts of different lengths are computed in parts (see
        inference.speculative.draft_length.step_parts)."""
        if any(
            work.scored or work.vectors for work in self.work
        ):  # logits, or a batch of its own, take longer than rows
            return False
        return not parted or len({work.outputs or 1 for work in self.work}) == 1
