"""The cache verdict of a prompt: how much of it was reused, where the first new token lies, and why it is new.

Pure. The engine says what the cache held (a `Miss`), the rendered prompt says which part its tokens belong to (its
outline), and both together say it so that a person can act: a date in the system text, a message that was changed.
Tokens that another tenant's cache holds are as new as any others: to say more would tell one tenant about another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from inference.outline import Extent, Part

# So many tokens of a part must be the same before the rest counts as edited: any two texts may begin "You are a".
EDITED_SHARED_MIN = 8
# What is looked at to see whether other tokens spell the same text.
SPELLED_BYTES_MIN = 8


@dataclass(frozen=True, slots=True)
class Miss:
    """What the cache knew of a prompt. Behind the reused tokens the prompt has `wanted`, and the entry closest to it
    `held`: a few tokens of each. Nothing is held where that entry ends."""

    cached: int
    seen: int = 0  # tokens at the beginning that were read at some time, in blocks
    wanted: tuple[int, ...] = ()
    held: tuple[int, ...] = ()


class Cause(StrEnum):
    """Why the first new token is new."""

    FIRST_USE = "first_use"  # nobody of this tenant sent it before
    EDITED = "edited"  # what stood here before is another text
    EVICTED = "evicted"  # it was in the cache and had to leave
    RETOKENISED = "retokenised"  # the same text, cut into other tokens


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cached` of `tokens` prompt tokens were reused. No segment and no cause when all but the last one were: that one
    is always computed."""

    cached: int
    tokens: int
    segment: Part | None = None
    cause: Cause | None = None


def judge(outline: Sequence[Extent], miss: Miss, pieces: Sequence[bytes]) -> Verdict:
    """`outline` covers the prompt in order; `pieces` are the bytes of every token."""
    tokens = sum(extent.tokens for extent in outline)
    if miss.cached >= tokens - 1:
        return Verdict(miss.cached, tokens)
    part, shared = _place(outline, miss.cached)
    return Verdict(miss.cached, tokens, part, _cause(miss, part, shared, pieces))


def _cause(miss: Miss, part: Part, shared: int, pieces: Sequence[bytes]) -> Cause:
    if miss.seen > miss.cached:
        return Cause.EVICTED
    if not miss.held:
        return Cause.FIRST_USE
    if _same_text(miss.held, miss.wanted, pieces):
        return Cause.RETOKENISED
    lasting = part in (Part.SYSTEM, Part.TOOLS, Part.HISTORY)
    return Cause.EDITED if lasting and shared >= EDITED_SHARED_MIN else Cause.FIRST_USE


def _place(outline: Sequence[Extent], position: int) -> tuple[Part, int]:
    """The part that a token lies in, and how many tokens of that part stand before it."""
    before = 0
    shared = 0
    part: Part | None = None
    for extent in outline:
        if extent.part is not part:
            part, shared = extent.part, 0
        if position < before + extent.tokens:
            return extent.part, shared + position - before
        before += extent.tokens
        shared += extent.tokens
    raise ValueError(f"no token {position} in a prompt of {before}")


def _same_text(held: Sequence[int], wanted: Sequence[int], pieces: Sequence[bytes]) -> bool:
    """Whether both begin with the same text. They differ in their first token."""
    a, b = (b"".join(pieces[token] for token in tokens) for tokens in (held, wanted))
    length = min(len(a), len(b))
    return length >= SPELLED_BYTES_MIN and a[:length] == b[:length]
