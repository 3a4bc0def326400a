"""Why a prompt had to be read: the verdict itself, and the facts that the slots give it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inference.kvcache.host_cache import HostCache
from inference.kvcache.miss_report import SEEN_BLOCK, SeenPrompts, judge
from inference.kvcache.slots import Slots
from inference.prompt import CacheScope, Cause, Extent, Miss, Part, Verdict

PIECES = [bytes([65 + token % 26]) * (1 + token // 26) for token in range(200)]
OUTLINE = [
    Extent(Part.SYSTEM, 100),
    Extent(Part.TOOLS, 50),
    Extent(Part.HISTORY, 20),
    Extent(Part.PASSAGES, 20),
    Extent(Part.QUESTION, 10),
]


def tokens(start: int, count: int) -> list[int]:
    return [start + i for i in range(count)]


@pytest.mark.parametrize(
    ("cached", "part"),
    [
        (0, Part.SYSTEM),
        (99, Part.SYSTEM),
        (100, Part.TOOLS),
        (169, Part.HISTORY),
        (189, Part.PASSAGES),
        (190, Part.QUESTION),
    ],
)
def test_the_segment_is_the_part_of_the_first_new_token(cached: int, part: Part) -> None:
    verdict = judge(OUTLINE, Miss(cached), PIECES)
    assert verdict == Verdict(cached, 200, part, Cause.FIRST_USE)


def test_a_prompt_read_before_needs_no_cause() -> None:
    assert judge(OUTLINE, Miss(199, seen=192), PIECES) == Verdict(199, 200)


def test_other_text_in_a_lasting_part_is_an_edit() -> None:
    miss = Miss(30, wanted=(1, 2, 3), held=(4, 5, 6))
    assert judge(OUTLINE, miss, PIECES).cause is Cause.EDITED


@pytest.mark.parametrize("cached", [2, 102, 175, 195])
def test_two_texts_that_merely_begin_alike_are_no_edit(cached: int) -> None:
    miss = Miss(cached, wanted=(1, 2, 3), held=(4, 5, 6))
    assert judge(OUTLINE, miss, PIECES).cause is Cause.FIRST_USE


def test_what_was_read_once_and_is_gone_was_evicted() -> None:
    assert judge(OUTLINE, Miss(30, seen=96), PIECES).cause is Cause.EVICTED


def test_the_same_text_in_other_tokens_is_told_from_an_edit() -> None:
    miss = Miss(160, wanted=(0,) * 10, held=(26, 26, 26, 26, 0, 0))  # AAAAAAAAAA and AA AA AA AA A A
    assert judge(OUTLINE, miss, PIECES).cause is Cause.RETOKENISED


def test_a_text_that_is_cached_without_a_state_is_told_and_where_it_is_near_what_follows_it() -> None:
    far, near = (Miss(30, seen=96, wanted=(1, 2, 3), held=(4, 5, 6), stateless=tokens) for tokens in (66, 20))
    assert (judge(OUTLINE, far, PIECES).cause, judge(OUTLINE, far, PIECES).cached) == (Cause.NO_CHECKPOINT, 30)
    assert (judge(OUTLINE, near, PIECES).cause, judge(OUTLINE, near, PIECES).cached) == (Cause.EVICTED, 30)


def test_seen_prompts_are_known_in_whole_blocks_and_by_their_beginning() -> None:
    seen = SeenPrompts()
    seen.add(tokens(0, 3 * SEEN_BLOCK + 5), CacheScope("a"))
    assert seen.match(tokens(0, 3 * SEEN_BLOCK + 5), CacheScope("a")) == 3 * SEEN_BLOCK
    assert (
        seen.match([*tokens(0, 2 * SEEN_BLOCK), 7, *tokens(2 * SEEN_BLOCK + 1, SEEN_BLOCK)], CacheScope("a"))
        == 2 * SEEN_BLOCK
    )
    assert seen.match(tokens(SEEN_BLOCK, 2 * SEEN_BLOCK), CacheScope("a")) == 0


def test_another_tenants_prompts_count_for_nothing() -> None:
    seen = SeenPrompts()
    seen.add(tokens(0, 64), CacheScope("a"))
    assert seen.match(tokens(0, 64), CacheScope("b")) == 0
    slots = Slots(2)
    place(slots, tokens(0, 100), "a")
    assert place(slots, tokens(0, 100), "b") == Miss(0, 0, tuple(tokens(0, 32)), ())


def test_what_is_known_of_prompts_has_a_size_that_grows_with_what_is_new_alone() -> None:
    slots = Slots(2)
    sizes = [slots.index_bytes]
    for _ in range(2):
        place(slots, tokens(0, 100), "a")
        sizes.append(slots.index_bytes)
    assert sizes[0] == 0 < sizes[1] == sizes[2]


def test_the_slots_tell_an_edit_from_growth() -> None:
    slots = Slots(4)
    place(slots, tokens(0, 100))
    grown = place(slots, tokens(0, 120))
    assert (grown.cached, grown.held) == (100, ())
    edited = place(slots, [*tokens(0, 50), *tokens(150, 40)])
    assert (edited.cached, edited.wanted[:2], edited.held[:2]) == (50, (150, 151), (50, 51))


def test_the_slots_know_what_was_evicted() -> None:
    slots = Slots(1, parked=HostCache(0))
    place(slots, tokens(0, 64))
    place(slots, tokens(100, 64))
    again = place(slots, tokens(0, 80))
    assert (again.cached, again.seen) == (0, 64)


def place(slots: Slots, prompt: Sequence[int], tenant: str = "a") -> Miss:
    """A request that comes, is computed and goes."""
    placement = slots.place(prompt, CacheScope(tenant))
    assert placement is not None and placement.miss is not None
    slots.advance(placement.slot, len(prompt) - placement.reused)
    slots.release(placement.slot, prompt)
    return placement.miss
