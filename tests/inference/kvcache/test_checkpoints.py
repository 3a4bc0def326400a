"""Which states of a recurrent model are kept, and which prompt goes on from which of them."""

from __future__ import annotations

import numpy as np
import pytest

from inference.kvcache.checkpoints import CHECKPOINT_TOKENS_MIN, Checkpoints, spaced
from inference.kvcache.host_cache import INDEX_TOKEN_BYTES, Entry, HostCache
from inference.kvcache.radix import SharedPrefixes
from inference.kvcache.slots import Placement, Slots
from inference.prompt import CacheScope
from tests.inference.kvcache.test_slots import ANYONE, finish

SYSTEM = list(range(100))
HISTORY = [*SYSTEM, *range(1000, 1200)]
STATE = np.zeros(1000, np.uint8)


def size(tokens: int) -> int:
    return STATE.nbytes + INDEX_TOKEN_BYTES * tokens


def test_a_prompt_finds_the_longest_checkpoint_that_it_begins_with() -> None:
    kept = Checkpoints(10**6)
    for tokens in (SYSTEM, HISTORY, [*SYSTEM, 7, 8]):
        kept.put(tokens, ANYONE, STATE)
    assert [found and len(found.tokens) for found in (
        kept.longest([*HISTORY, 1], ANYONE), kept.longest(HISTORY[:-1], ANYONE), kept.longest(SYSTEM[:-1], ANYONE)
    )] == [300, 100, None]  # fmt: skip


def test_the_checkpoint_that_saves_least_goes_first_and_what_is_never_used_in_the_end() -> None:
    kept = Checkpoints(2 * size(300))
    kept.put(SYSTEM, ANYONE, STATE)
    for number in range(5):  # each conversation goes on from the instructions
        conversation = [*SYSTEM, *[2000 + number] * 150]
        found = kept.longest(conversation, ANYONE)
        assert found is not None and list(found.tokens) == SYSTEM
        kept.use(found)
        kept.put(conversation, ANYONE, STATE)
    assert kept.bytes <= 2 * size(300)
    for number in range(50):
        kept.put([3000 + number] * 200, ANYONE, STATE)
    assert kept.longest(SYSTEM, ANYONE) is None, "nobody has used it for long"


def test_on_disk_are_the_end_of_the_instructions_and_the_newest_ones() -> None:
    kept, ends = Checkpoints(10**6), range(100, 301, 20)
    for end in ends:
        kept.put(HISTORY[:end], ANYONE, STATE)
    assert [each.tokens for each in kept.along([*HISTORY, 7], ANYONE)] == [100, 240, 260, 280, 300]
    assert [each.tokens for each in kept.along([*SYSTEM, 7], ANYONE)] == [100]
    assert kept.along(SYSTEM[:-1], ANYONE) == kept.along(HISTORY, CacheScope("one")) == ()


def test_the_end_of_a_prompt_right_behind_another_state_is_not_worth_a_place_on_disk() -> None:
    kept, logits = Checkpoints(10**6), np.zeros(5, np.float32)
    for end, known in ((100, None), (200, logits), (300, None), (305, logits)):
        kept.put([*HISTORY, *range(9)][:end], ANYONE, STATE, known)
    assert [each.tokens for each in kept.along([*HISTORY, *range(9)], ANYONE)] == [100, 200, 300]


def test_a_state_is_kept_as_it_comes_from_the_device() -> None:
    kept = Checkpoints(10**6)
    kept.put(SYSTEM, ANYONE, STATE)
    found = kept.longest(SYSTEM, ANYONE)
    assert found is not None and found.state is STATE, "a further copy delays the first token"


def test_logits_take_their_bytes() -> None:
    kept = Checkpoints(10**6)
    for logits in (None, np.zeros(5, np.float32), np.zeros(5, np.float32)):
        kept.put(HISTORY, ANYONE, STATE, logits)
    assert (len(kept), kept.bytes) == (1, size(300) + 20)


@pytest.mark.parametrize("bytes_max", [0, size(99)])
def test_what_has_no_room_is_not_kept(bytes_max: int) -> None:
    kept = Checkpoints(bytes_max)
    kept.put(SYSTEM, ANYONE, STATE)
    assert (len(kept), kept.bytes) == (0, 0)


def test_boundaries_are_kept_only_so_far_apart_that_a_step_pays() -> None:
    assert spaced([500, 100, 100 + CHECKPOINT_TOKENS_MIN - 1, 40], computed=60) == (100, 500)
    assert spaced([CHECKPOINT_TOKENS_MIN - 1], computed=0) == ()


def test_tenants_share_no_checkpoint_but_that_of_what_the_platform_says() -> None:
    shared_prefixes = SharedPrefixes()
    shared_prefixes.add(SYSTEM)
    kept = Checkpoints(10**6, shared_prefixes)
    kept.put(SYSTEM, CacheScope("one"), STATE)
    kept.put(HISTORY, CacheScope("one"), STATE)
    for tenant, tokens in (("one", 300), ("two", 100)):
        found = kept.longest([*HISTORY, 1], CacheScope(tenant))
        assert found is not None and len(found.tokens) == tokens
    assert Checkpoints(10**6).longest(SYSTEM, CacheScope("one")) is None


def hybrid(count: int, *, parked: int = 0) -> Slots:
    return Slots(count, parked=HostCache(parked), checkpoints=Checkpoints(10**6), rewinds=False)


def compute(slots: Slots, prompt: list[int], answer: list[int], *boundaries: int) -> Placement:
    """As the engine does it: the state is kept at each boundary of the slot."""
    placement = slots.place(prompt, ANYONE, boundaries=boundaries)
    assert placement is not None
    for at in (*slots[placement.slot].boundaries, len(prompt)):
        slots.advance(placement.slot, at - slots[placement.slot].computed)
        if at in slots[placement.slot].boundaries:
            slots.keep_checkpoint(placement.slot, STATE)
    finish(slots, placement.slot, [*prompt, *answer])
    return placement


def test_another_conversation_goes_on_from_the_instructions_in_a_slot_of_its_own() -> None:
    slots = hybrid(2)
    compute(slots, [*HISTORY, 7], [8, 9], 100)
    placement = slots.place([*SYSTEM, 5, 5], ANYONE)
    assert placement is not None and placement.checkpoint is not None
    assert (placement.slot, placement.source, placement.reused) == (1, 0, 100)
    assert placement.miss is not None and placement.miss.stateless == 0


def test_the_end_of_a_turn_is_kept_when_the_next_one_goes_on_from_it() -> None:
    slots = hybrid(1)
    compute(slots, HISTORY, [1, 2])
    first = compute(slots, [*HISTORY, 1, 2, *range(50)], [3])
    edited = slots.place([*HISTORY, 1, 2, 99, 99], ANYONE)
    assert first.checkpoint is None and first.reused == 302
    assert edited is not None and edited.checkpoint is not None and edited.reused == 302


def test_a_parked_conversation_comes_back_to_a_checkpoint_of_it() -> None:
    slots = hybrid(1, parked=10**6)
    compute(slots, [*HISTORY, 7], [8, 9], 100, 300)
    saved = slots.offer()
    assert saved is not None
    slots.release(0, [])
    slots.parked.put(Entry(saved.tokens, saved.scope, STATE))
    placement = slots.place([*HISTORY, 6, 6], ANYONE)
    assert placement is not None and placement.restored is not None and placement.checkpoint is not None
    assert (placement.reused, len(placement.checkpoint.tokens)) == (300, 300)


def test_what_is_cached_without_a_state_is_told() -> None:
    slots = hybrid(2)
    compute(slots, HISTORY, [1, 2], 100)
    placement = slots.place([*HISTORY[:250], 5, 5], ANYONE)
    assert placement is not None and placement.miss is not None
    assert (placement.reused, placement.miss.stateless, placement.miss.held[:1]) == (100, 150, (HISTORY[250],))


def test_a_prompt_waits_for_the_checkpoint_that_another_request_is_about_to_reach() -> None:
    slots = hybrid(2)
    slots.place([*HISTORY, 1], ANYONE, boundaries=(100, 300))
    assert slots.prefix_owners([*SYSTEM, 9, 9], ANYONE) == {0}
    slots.advance(0, 100)
    slots.keep_checkpoint(0, STATE)
    assert not slots.prefix_owners([*SYSTEM, 9, 9], ANYONE)
    placement = slots.place([*SYSTEM, 9, 9], ANYONE)
    assert placement is not None and (placement.slot, placement.source, placement.reused) == (1, 0, 100)
