"""Parked conversations are found by their beginning and bounded in bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.attention import ALL, Attention
from inference.backend import Chunk, Region
from inference.bundled import CHAT_MODEL
from inference.kvcache.host_cache import (
    DEFAULT_BYTES_MIN,
    DEFAULT_TOKENS,
    PARK_TOKENS_MIN,
    Entry,
    HostCache,
    Root,
    Tail,
    default_bytes,
)
from inference.kvcache.radix import common_length
from inference.llama import LlamaContext, LlamaModel
from inference.llama.state import regions as regions_of_state
from inference.prompt import CacheScope

ANYONE = CacheScope("")
SHARED, SLOTS, CONTEXT = 100, 3, 512
FUZZED = 300


def tokens(first: int, count: int = PARK_TOKENS_MIN) -> list[int]:
    return [first, *range(1000, 1000 + count - 1)]


def state(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.zeros(size, np.uint8)


def test_the_least_recently_used_goes_when_the_bytes_run_out() -> None:
    parked = HostCache(20)
    for first in (1, 2):
        parked.put(Entry(tuple(tokens(first)), ANYONE, state(10)))
    _ = parked[parked.match(tokens(1), ANYONE)[0] or 0]  # used now
    parked.put(Entry(tuple(tokens(3)), ANYONE, state(10)))
    assert [parked.match(tokens(first), ANYONE)[1] > 0 for first in (1, 2, 3)] == [True, False, True]
    assert (len(parked), parked.bytes) == (2, 20)


def test_a_longer_state_of_a_conversation_replaces_the_shorter_one() -> None:
    parked = HostCache(100)
    parked.put(Entry(tuple(tokens(1)), ANYONE, state(10)))
    parked.put(Entry((*tokens(1), 7, 8), ANYONE, state(12)))
    assert (len(parked), parked.bytes) == (1, 12)


def test_the_length_of_a_match_is_known_while_its_entry_leaves() -> None:
    """The event loop asks for it while the engine's thread makes room."""
    cache = filled(entry(1, 2, 3))
    (kept,) = cache.entries
    leaving = cache._entries
    cache._entries = type(leaving)()  # gone, and still in the index
    assert cache.longest(kept.tokens, kept.scope) == len(kept.tokens)


def test_a_state_larger_than_everything_is_not_kept() -> None:
    parked = HostCache(10)
    parked.put(Entry(tuple(tokens(1)), ANYONE, state(5)))
    parked.put(Entry(tuple(tokens(2)), ANYONE, state(11)))
    assert (len(parked), parked.bytes) == (1, 5)


def test_a_short_beginning_comes_from_the_smallest_of_those_that_have_it() -> None:
    parked, system = HostCache(100), tokens(1)
    short = Entry((*system, 2, 3), ANYONE, state(6))
    for each in (Entry((*system, 7), ANYONE, state(9)), short, Entry((*system, 9), ANYONE, state(9))):
        parked.put(each)
    key, length = parked.match([*system, 5], ANYONE)
    assert key is not None and (parked[key].tokens, length) == (short.tokens, len(system))


def test_the_usual_cap_follows_the_model_and_the_free_memory() -> None:
    small, large, gigabyte = 4_657, 147_456, 10**9  # bytes of a token: the bundled model, one of four billion
    assert default_bytes(small, 16 * gigabyte) == DEFAULT_BYTES_MIN
    assert default_bytes(large, 64 * gigabyte) == DEFAULT_TOKENS * large
    assert default_bytes(large, 16 * gigabyte) == 4 * gigabyte
    assert default_bytes(small, gigabyte) == gigabyte // 4
    assert default_bytes(large, None) == DEFAULT_BYTES_MIN


def test_only_what_is_long_and_new_is_wanted() -> None:
    parked = HostCache(100)
    assert parked.wants(tokens(1), ANYONE) and not parked.wants(tokens(1)[:-1], ANYONE)
    parked.put(Entry((*tokens(1), 7), ANYONE, state(1)))
    assert not parked.wants(tokens(1), ANYONE) and parked.wants([*tokens(1), 8], ANYONE)
    assert parked.wants(tokens(1), CacheScope("another tenant"))
    assert not HostCache(0).wants(tokens(1), ANYONE)


def entry(*content: int, tenant: str = "") -> Entry:
    """Its state is four bytes a token."""
    return Entry(content, CacheScope(tenant), np.frombuffer(np.array(content, np.int32).tobytes(), np.uint8))


def regions(state: np.ndarray[tuple[int], np.dtype[np.uint8]], count: int) -> list[Region]:
    return [Region(0, 1, state.nbytes, 4 * count)]


def filled(*entries: Entry, bytes_max: int = 10_000) -> HostCache:
    parked = HostCache(bytes_max)
    for each in entries:
        parked.put(each, regions)
    return parked


def test_a_beginning_that_conversations_share_is_kept_once() -> None:
    system = tokens(1)
    talks = [entry(*system, n, n, n) for n in range(5)]
    parked = filled(*talks)
    assert parked.bytes == 4 * len(system) + 5 * 4 * 3
    assert [each.tokens for each in parked.entries] == [talk.tokens for talk in reversed(talks)]
    assert all(np.array_equal(a.state, b.state) for a, b in zip(parked.entries, reversed(talks), strict=True))


def test_the_next_turn_of_a_conversation_stays_behind_its_shared_beginning() -> None:
    system = tokens(1)
    parked = filled(entry(*system, 2), entry(*system, 3), entry(*system, 3, *range(200)))
    assert len(parked) == 2 and parked.bytes == 4 * (len(system) + 1 + 201)


def test_a_longer_beginning_that_two_share_among_many_is_kept_once_too() -> None:
    system, page = tokens(1), range(5000, 5300)
    parked = filled(entry(*system, 2), entry(*system, 3), entry(*system, *page, 4), entry(*system, *page, 5))
    whole = len(system) + len(page)
    assert parked.bytes == 4 * (len(system) + 2 + whole + 1 + len(page) + 1)  # the first to have it is not cut again


def test_a_shared_beginning_goes_with_the_last_that_has_it() -> None:
    system = tokens(1)
    parked = filled(entry(*system, 2), entry(*system, 3))
    for each in parked.entries:
        parked.discard(each)
    assert (len(parked), parked.bytes, parked.tokens) == (0, 0, 0)


def test_what_had_to_leave_is_still_whole() -> None:
    system = tokens(1)
    parked = filled(entry(*system, 2), entry(*system, 3), bytes_max=4 * (len(system) + 2))
    (gone,) = parked.put(entry(*system, 4), regions)
    assert np.array_equal(gone.state, entry(*system, 2).state)
    assert parked.bytes == 4 * (len(system) + 2)


def test_tenants_share_nothing_in_memory() -> None:
    system = tokens(1)
    parked = filled(entry(*system, 2, tenant="one"), entry(*system, 2, tenant="two"))
    assert parked.bytes == 2 * 4 * (len(system) + 1)


def test_a_beginning_that_was_computed_otherwise_is_not_replaced() -> None:
    system = tokens(1)
    other = Entry((*system, 3), ANYONE, entry(*system, 3).state + np.uint8(1))
    parked = filled(entry(*system, 2), other)
    assert all(
        np.array_equal(a.state, b.state) for a, b in zip(parked.entries, (other, entry(*system, 2)), strict=True)
    )


long = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(
    lambda ways: tuple(way for way in ways for _ in range(PARK_TOKENS_MIN))
)


@given(st.lists(st.tuples(long, st.sampled_from("ab")), max_size=20), st.integers(300, 5000))
def test_bytes_add_up_and_states_are_whole_whatever_is_shared(
    puts: list[tuple[tuple[int, ...], str]], room: int
) -> None:
    parked = HostCache(room)
    for content, tenant in puts:
        gone = parked.put(entry(*content, tenant=tenant), regions)
        assert all(np.array_equal(each.state, entry(*each.tokens).state) for each in [*gone, *parked.entries])
        roots = {each.root for each in parked.entries if each.root is not None}
        own = sum(each.own_bytes for each in parked.entries)
        assert parked.bytes == own + sum(root.content.nbytes for root in roots) <= room


few = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(st.tuples(few, st.sampled_from("ab"), st.integers(1, 9)), max_size=30), few)
def test_bytes_add_up_and_a_match_is_the_longest_that_is_left(
    puts: list[tuple[list[int], str, int]], wanted: list[int]
) -> None:
    parked = HostCache(25)
    for content, tenant, size in puts:
        parked.put(Entry(tuple(content), CacheScope(tenant), state(size)))
    kept = list(parked._entries.values())
    assert parked.bytes == sum(entry.state.nbytes for entry in kept) <= 25
    lengths = [common_length(wanted, list(entry.tokens)) for entry in kept if entry.scope.tenant == "a"]
    entry, length = parked.match(wanted, CacheScope("a"))
    assert length == max(lengths, default=0)
    assert (entry is None) == (length == 0)


@st.composite
def cut_states(draw: st.DrawFn) -> tuple[NDArray[np.uint8], list[Region]]:
    at, found = 0, []
    for _ in range(draw(st.integers(1, 4))):
        at += draw(st.integers(0, 5))
        rows, row_bytes = draw(st.integers(1, 4)), draw(st.integers(1, 6))
        found.append(Region(at, rows, row_bytes, draw(st.integers(1, row_bytes))))
        at = found[-1].end
    size = at + draw(st.integers(0, 5))
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8), found


@given(cut_states())
def test_a_root_and_its_tail_are_the_state(cut: tuple[NDArray[np.uint8], list[Region]]) -> None:
    state, places = cut
    root = Root.of(state, places, 1)
    tail = Tail.of(state, places, root)
    assert tail is not None and np.array_equal(tail.whole(), state)
    assert tail.rest.nbytes + root.content.nbytes == state.nbytes == tail.size


@given(cut_states(), st.data())
def test_a_state_that_begins_otherwise_has_no_tail_behind_a_root(
    cut: tuple[NDArray[np.uint8], list[Region]], data: st.DataObject
) -> None:
    state, places = cut
    root = Root.of(state, places, 1)
    root.content[data.draw(st.integers(0, root.content.size - 1))] ^= 1
    assert Tail.of(state, places, root) is None
    assert Tail.of(state, (), root) is None


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    return LlamaModel.load(CHAT_MODEL)


def talking(model: LlamaModel, mode: Attention) -> LlamaContext:
    """Slots 0 and 1 hold conversations of one beginning."""
    context = LlamaContext(model, slots=SLOTS, context=CONTEXT, rows_max=256, threads=1, attention=mode)
    context.decode([Chunk(0, 0, [*range(300, 300 + SHARED), *[5] * 37])])
    context.fork(0, 1, SHARED)
    context.decode([Chunk(1, SHARED, [9] * 50)])
    return context


@pytest.mark.parametrize("mode", ALL, ids=str)
def test_a_conversation_comes_back_from_its_tail_bit_by_bit(model: LlamaModel, mode: Attention) -> None:
    context = talking(model, mode)
    first, second = context.save(0), context.save(1)
    root = Root.of(first, regions_of_state(first, SHARED), SHARED)
    tail = Tail.of(second, regions_of_state(second, SHARED), root)
    assert tail is not None and np.array_equal(tail.whole(), second)
    assert tail.rest.nbytes < 0.36 * second.nbytes  # 50 tokens of 150, and what is told of each cell
    kept = context.decode([Chunk(1, SHARED + 50, [7, 8])]).copy()
    context.truncate(0, 0)
    context.truncate(1, 0)
    context.restore(1, tail.whole())
    assert np.array_equal(context.save(1), second)
    assert np.array_equal(context.decode([Chunk(1, SHARED + 50, [7, 8])]), kept)
    context.close()


def test_a_state_of_another_kind_is_cut_nowhere(model: LlamaModel) -> None:
    context = talking(model, ALL[0])
    state = context.save(0)
    assert regions_of_state(state, SHARED) and not regions_of_state(state, 138)  # it has 137 tokens
    assert not regions_of_state(state[:-1], SHARED) and not regions_of_state(state[:9], SHARED)
    context.close()


def test_whatever_the_bytes_are_nothing_is_lost(model: LlamaModel) -> None:
    context = talking(model, ALL[0])
    random, state = np.random.default_rng(3), context.save(0)
    context.close()
    for _ in range(FUZZED):
        damaged = state.copy()
        damaged[random.integers(0, 3000, size=4)] = random.integers(0, 256, size=4)
        if places := regions_of_state(damaged, SHARED):
            tail = Tail.of(damaged, places, Root.of(damaged, places, SHARED))
            assert tail is not None and np.array_equal(tail.whole(), damaged)
