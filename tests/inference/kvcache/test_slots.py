"""Where prompts are placed in the cache."""

from __future__ import annotations

import numpy as np
import pytest

from inference.kvcache.host_cache import Entry, HostCache
from inference.kvcache.miss_report import SEEN_BLOCK
from inference.kvcache.radix import SharedPrefixes
from inference.kvcache.slots import SHARED_PREFILL_MIN, TAIL_LOSS_MAX, Placement, PromptEnd, Saved, Slots
from inference.prompt import CacheScope

SYSTEM = list(range(100))
ANYONE = CacheScope("")


def finish(slots: Slots, number: int, tokens: list[int]) -> None:
    slots.advance(number, len(tokens) - slots[number].computed)
    slots.release(number, tokens)


def test_the_next_turn_of_a_conversation_goes_on_in_its_slot() -> None:
    slots = Slots(2)
    assert slots.place(SYSTEM, ANYONE) == Placement(0, 0, 0)
    finish(slots, 0, [*SYSTEM, 7, 8])
    assert slots.place([*SYSTEM, 7, 8, 9], ANYONE) == Placement(slot=0, source=0, reused=102)


def test_a_shared_prefix_is_forked_so_that_the_first_conversation_keeps_its_history() -> None:
    slots = Slots(3)
    slots.place(SYSTEM, ANYONE)
    history = [*SYSTEM, *range(1000, 1000 + TAIL_LOSS_MAX + 1)]
    finish(slots, 0, history)
    assert slots.place([*SYSTEM, 5], ANYONE) == Placement(slot=1, source=0, reused=100)
    assert slots.place([*history, 5], ANYONE) == Placement(slot=0, source=0, reused=len(history))


def test_the_least_recently_used_conversation_makes_room() -> None:
    slots = Slots(2)
    for number, first in ((0, 1), (1, 2)):
        slots.place([first, 5, 5], ANYONE)
        finish(slots, number, [first, 5, 5])
    assert slots.place([3, 3, 3], ANYONE) == Placement(0, 0, 0)
    assert ([slots[number].live for number in range(2)], slots.resident) == ([True, False], 1)


def live_with(slots: Slots, *, finished: list[int], count: int) -> Slots:
    """So many conversations begin, of which these end."""
    for number in range(count):
        slots.place([1000 + number] * 200, ANYONE)
    for number in finished:
        finish(slots, number, [1000 + number] * 200)
    return slots


def test_who_comes_fills_the_gap_between_those_who_run() -> None:
    slots = live_with(Slots(8, parked=HostCache(10**6)), finished=[1, 4, 5], count=6)
    placed = [slots.place([number], ANYONE) for number in (1, 2, 3)]
    assert [placement and placement.slot for placement in placed] == [1, 4, 5]


def test_a_conversation_that_returns_moves_to_those_who_run() -> None:
    slots = live_with(Slots(8, parked=HostCache(10**6)), finished=[0, 1, 2, 3, 4], count=7)
    assert slots.place([1000] * 200 + [7], ANYONE) == Placement(slot=7, source=0, reused=200)


@pytest.mark.parametrize("slots", [Slots(8), Slots(8, parked=HostCache(10**6), streams=False)])
def test_nobody_is_moved_where_that_loses_a_conversation_or_wins_nothing(slots: Slots) -> None:
    live_with(slots, finished=[0, 1, 2, 3, 4], count=7)
    assert slots.place([1000] * 200 + [7], ANYONE) == Placement(slot=0, source=0, reused=200)


def test_a_conversation_that_returns_alone_stays_where_it_is() -> None:
    slots = live_with(Slots(8), finished=[0, 1, 2, 3, 4], count=5)
    assert slots.place([1002] * 200 + [7], ANYONE) == Placement(slot=2, source=2, reused=200)


def test_a_gap_is_filled_even_where_the_shared_beginning_is_kept_and_that_goes_to_host_memory() -> None:
    slots = live_with(Slots(3, parked=HostCache(10**6)), finished=[1], count=3)
    placement = slots.place([1001] * 100 + [7], ANYONE)
    assert placement == Placement(slot=1, source=1, reused=100, saves=Saved(1, (1001,) * 200, ANYONE))


def test_no_place_while_every_slot_is_live() -> None:
    slots = Slots(1)
    slots.place([1, 2], ANYONE)
    assert slots.place([3, 4], ANYONE) is None


def test_a_prompt_waits_for_the_prefix_that_another_request_is_computing() -> None:
    slots = Slots(2)
    slots.place(SYSTEM, ANYONE)
    assert slots.prefix_owners([*SYSTEM, 1], ANYONE) == {0}
    slots.advance(0, len(SYSTEM) - SHARED_PREFILL_MIN + 1)
    assert not slots.prefix_owners([*SYSTEM, 1], ANYONE)
    placed = slots.place([*SYSTEM, 1], ANYONE)
    assert placed == Placement(slot=1, source=0, reused=len(SYSTEM) - SHARED_PREFILL_MIN + 1)


def test_the_last_prompt_token_is_always_computed() -> None:
    slots = Slots(1)
    slots.place([1, 2, 3], ANYONE)
    finish(slots, 0, [1, 2, 3])
    assert slots.place([1, 2, 3], ANYONE) == Placement(0, 0, reused=2)


def test_a_single_row_of_an_exact_prompt_is_not_reused() -> None:
    slots = Slots(2)
    slots.place([1], ANYONE, recomputed=2)
    finish(slots, 0, [1])
    assert slots.place([1, 2, 3, 4], ANYONE, recomputed=2) == Placement(1, 1, 0)


def test_what_was_drawn_from_belongs_to_the_prompt_that_the_slot_was_given_last() -> None:
    slots, end = Slots(1), PromptEnd(len(SYSTEM), np.zeros(3, np.float32))
    slots.place(SYSTEM, ANYONE)
    slots.advance(0, len(SYSTEM))
    slots.keep_end(0, end)
    finish(slots, 0, [*SYSTEM, 7])
    assert slots.place(SYSTEM, ANYONE, answers=True) == Placement(0, 0, len(SYSTEM), logits=end.logits)
    finish(slots, 0, SYSTEM)
    other = [7] * len(SYSTEM)
    slots.place([*other, 8], ANYONE)
    finish(slots, 0, other)
    assert slots.place(other, ANYONE, answers=True) == Placement(0, 0, len(other) - 1)


def test_the_end_of_a_prompt_goes_with_what_leads_to_it() -> None:
    slots = Slots(1)
    slots.place(SYSTEM, ANYONE)
    slots.advance(0, len(SYSTEM))
    slots.keep_end(0, PromptEnd(len(SYSTEM), np.zeros(3, np.float32)))
    slots.release(0, SYSTEM[:-1])
    assert slots[0].end is None


def test_a_prompt_in_a_slot_that_turned_out_to_be_empty_is_waited_for() -> None:
    slots, end = Slots(2), PromptEnd(len(SYSTEM), np.zeros(3, np.float32))
    slots.place(SYSTEM, ANYONE)
    slots.advance(0, len(SYSTEM))
    slots.keep_end(0, end)
    finish(slots, 0, SYSTEM)
    assert slots.place(SYSTEM, ANYONE, answers=True) == Placement(0, 0, len(SYSTEM), logits=end.logits)
    assert not slots.prefix_owners(SYSTEM, ANYONE, answers=True)
    slots.restart(0)
    assert slots.prefix_owners(SYSTEM, ANYONE, answers=True) == {0}


def test_tenants_do_not_share_prefixes() -> None:
    slots = Slots(2)
    slots.place(SYSTEM, CacheScope("one"))
    finish(slots, 0, SYSTEM)
    assert slots.place(SYSTEM, CacheScope("two")) == Placement(1, 1, 0)


def test_a_model_that_cannot_go_back_continues_only_from_where_it_stands() -> None:
    slots = Slots(2, rewinds=False)
    slots.place(SYSTEM, ANYONE)
    finish(slots, 0, [*SYSTEM, 7])
    assert slots.place([*SYSTEM, 8], ANYONE) == Placement(1, 1, 0)
    assert slots.place([*SYSTEM, 7, 9], ANYONE) == Placement(slot=0, source=0, reused=101)


def test_a_conversation_is_saved_before_its_slot_is_taken_and_restored_when_it_returns() -> None:
    slots = Slots(1, parked=HostCache(100))
    slots.place(SYSTEM, ANYONE)
    finish(slots, 0, SYSTEM)
    saved = Saved(0, tuple(SYSTEM), ANYONE)
    assert slots.place([7, 8], ANYONE) == Placement(0, 0, 0, saves=saved)
    slots.parked.put(Entry(saved.tokens, saved.scope, np.zeros(1, np.uint8)))
    finish(slots, 0, [7, 8])
    (entry,) = slots.parked.entries
    assert slots.place([*SYSTEM, 9], ANYONE) == Placement(0, 0, reused=100, restored=entry)


def test_what_host_memory_was_offered_in_a_pause_is_not_saved_again() -> None:
    slots = Slots(1, parked=HostCache(100))
    slots.place(SYSTEM, ANYONE)
    finish(slots, 0, SYSTEM)
    assert slots.offer() == Saved(0, tuple(SYSTEM), ANYONE)
    assert slots.offer() is None
    slots.parked.put(Entry(tuple(SYSTEM), ANYONE, np.zeros(1, np.uint8)))
    assert slots.place([7, 8], ANYONE) == Placement(0, 0, 0)


def test_what_could_not_be_saved_in_a_pause_is_not_tried_again_until_its_slot_is_taken() -> None:
    slots = Slots(1, parked=HostCache(100))
    slots.place(SYSTEM, ANYONE)
    finish(slots, 0, SYSTEM)
    assert slots.offer() is not None
    assert slots.offer() is None
    assert slots.place([7, 8], ANYONE) == Placement(0, 0, 0, saves=Saved(0, tuple(SYSTEM), ANYONE))
    finish(slots, 0, [7] * 100)
    assert slots.offer() == Saved(0, (7,) * 100, ANYONE), "another conversation may be saved"


def test_a_slot_that_holds_nearly_as_much_is_preferred_to_host_memory() -> None:
    slots = Slots(2, parked=HostCache(100))
    slots.parked.put(Entry(tuple(SYSTEM), ANYONE, np.zeros(1, np.uint8)))
    slots.place(SYSTEM[:90], ANYONE)
    finish(slots, 0, SYSTEM[:90])
    assert slots.place([*SYSTEM, 9], ANYONE) == Placement(0, 0, reused=90)


def test_nobody_waits_for_what_is_read_ahead() -> None:
    slots = Slots(2)
    slots.place(SYSTEM, ANYONE, ahead=True)
    slots.advance(0, 40)
    assert not slots.prefix_owners([*SYSTEM, 1], ANYONE)
    assert slots.place([*SYSTEM, 1], ANYONE) == Placement(slot=1, source=0, reused=40)


def test_what_was_only_read_ahead_is_not_told_as_evicted() -> None:
    slots = Slots(1)
    slots.place(SYSTEM, ANYONE, ahead=True)
    slots.release(0, [])
    placed = slots.place(SYSTEM, ANYONE)
    assert placed is not None and placed.miss is not None
    assert placed.miss.seen == 0


def test_what_was_cancelled_before_it_was_computed_is_not_told_as_evicted() -> None:
    slots = Slots(1)
    slots.place(SYSTEM, ANYONE)
    slots.advance(0, 40)
    slots.release(0, SYSTEM[:40])
    slots.place([7] * 100, ANYONE)
    slots.release(0, [])
    placed = slots.place(SYSTEM, ANYONE)
    assert placed is not None and placed.miss is not None
    assert placed.miss.seen == 40 // SEEN_BLOCK * SEEN_BLOCK


def test_what_the_platform_says_is_computed_once_for_all_and_nothing_else_is_told() -> None:
    shared_prefixes = SharedPrefixes()
    shared_prefixes.add(SYSTEM)
    slots = Slots(3, parked=HostCache(100, shared_prefixes), shared_prefixes=shared_prefixes)
    slots.place([*SYSTEM, *range(500, 600)], CacheScope("one"))
    finish(slots, 0, [*SYSTEM, *range(500, 600)])
    placed = slots.place([*SYSTEM, *range(700, 800)], CacheScope("two"))
    assert placed is not None and placed.miss is not None
    assert (placed.reused, placed.miss.held, placed.miss.seen) == (len(SYSTEM), (), 0)


def test_what_the_platform_says_comes_back_from_host_memory_for_all() -> None:
    shared_prefixes = SharedPrefixes()
    shared_prefixes.add(SYSTEM)
    slots = Slots(1, parked=HostCache(100, shared_prefixes), shared_prefixes=shared_prefixes)
    slots.parked.put(Entry((*SYSTEM, *range(500, 600)), CacheScope("one"), np.zeros(1, np.uint8)))
    placed = slots.place([*SYSTEM, *range(700, 800)], CacheScope("two"))
    assert placed is not None and placed.miss is not None and placed.restored is not None
    assert (placed.reused, placed.miss.held) == (len(SYSTEM), ())
