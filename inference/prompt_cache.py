"""The parts of a prompt, what the prompt cache shares with whom, and what it says of a prompt that it did not have."""

from __future__ import annotations

from enum import StrEnum

from inference.frozen import dataclass


class Part(StrEnum):
    """The role of a piece of the prompt, in the usual order."""

    SYSTEM = "system"
    TOOLS = "tools"  # their schemas
    HISTORY = "history"  # messages before the question
    PASSAGES = "passages"
    QUESTION = "question"  # the newest user message
    RESULTS = "results"  # calls and results of the current turn so far


@dataclass(frozen=True, slots=True)
class Extent:
    """A number of consecutive prompt tokens that belong to one part."""

    part: Part
    tokens: int


@dataclass(frozen=True, slots=True)
class Miss:
    """What the cache had of a prompt. After the tokens that it had, the prompt has `wanted`, and the closest entry
    `held`: a few tokens of each. `held` is empty if that entry ends there.

    The first `cached` tokens were reused. As many as `stateless` follow in the cache that were computed again, because
    no checkpoint of the model's recurrent layers belongs to them.
    """

    cached: int
    seen: int = 0  # tokens of the longest prefix that was ever prefilled, in blocks
    wanted: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    stateless: int = 0

    @property
    def known(self) -> int:
        """Tokens that the cache had, whether they were reused or not."""
        return self.cached + self.stateless


class Cause(StrEnum):
    """Why the first token that was not reused is new."""

    FIRST_USE = "first_use"  # this tenant never sent it before
    EDITED = "edited"  # there was another text in its place
    EVICTED = "evicted"  # it was in the cache and was evicted
    RETOKENISED = "retokenised"  # the same text, split into other tokens
    NO_CHECKPOINT = "no_checkpoint"  # it was in the cache, but no state of the recurrent layers belongs to it


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cached` of `tokens` prompt tokens were reused. `segment` and `cause` are None if all but the last token were,
    which is always computed."""

    cached: int
    tokens: int
    segment: Part | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class CacheScope:
    """Prompts share cached prefixes only within one scope: those of one tenant that are computed the same way.

    `exact` requests are computed differently (see `Request.batchable` and `Request.reusable`), so their cache is
    separate. Prefixes without any tenant's data are shared across scopes: see `SharedPrefixes`.
    """

    tenant: str
    exact: bool = False
