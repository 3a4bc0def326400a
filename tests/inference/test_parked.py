"""Parked conversations are found by their beginning and bounded in bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inference.parked import PARK_TOKENS_MIN, USUAL_BYTES_MIN, USUAL_TOKENS, Entry, Parked, usual_bytes
from inference.prefix import common_length


def tokens(first: int, count: int = PARK_TOKENS_MIN) -> list[int]:
    return [first, *range(1000, 1000 + count - 1)]


def state(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.zeros(size, np.uint8)


def test_the_least_recently_used_goes_when_the_bytes_run_out() -> None:
    parked = Parked(20)
    for first in (1, 2):
        parked.put(Entry(tuple(tokens(first)), "", state(10)))
    _ = parked[parked.match(tokens(1), "")[0] or 0]  # used now
    parked.put(Entry(tuple(tokens(3)), "", state(10)))
    assert [parked.match(tokens(first), "")[1] > 0 for first in (1, 2, 3)] == [True, False, True]
    assert repr(parked) == "<Parked 2 conversations | 20 of 20 bytes>"


def test_a_longer_state_of_a_conversation_replaces_the_shorter_one() -> None:
    parked = Parked(100)
    parked.put(Entry(tuple(tokens(1)), "", state(10)))
    parked.put(Entry((*tokens(1), 7, 8), "", state(12)))
    assert (len(parked), parked.bytes) == (1, 12)


def test_a_state_larger_than_everything_is_not_kept() -> None:
    parked = Parked(10)
    parked.put(Entry(tuple(tokens(1)), "", state(5)))
    parked.put(Entry(tuple(tokens(2)), "", state(11)))
    assert (len(parked), parked.bytes) == (1, 5)


def test_a_short_beginning_comes_from_the_smallest_of_those_that_have_it() -> None:
    parked, system = Parked(100), tokens(1)
    short = Entry((*system, 2, 3), "", state(6))
    for each in (Entry((*system, 7), "", state(9)), short, Entry((*system, 9), "", state(9))):
        parked.put(each)
    key, length = parked.match([*system, 5], "")
    assert key is not None and (parked[key], length) == (short, len(system))


def test_the_usual_cap_follows_the_model_and_the_free_memory() -> None:
    small, large, gigabyte = 4_657, 147_456, 10**9  # bytes of a token: the bundled model, one of four billion
    assert usual_bytes(small, 16 * gigabyte) == USUAL_BYTES_MIN
    assert usual_bytes(large, 64 * gigabyte) == USUAL_TOKENS * large
    assert usual_bytes(large, 16 * gigabyte) == 4 * gigabyte
    assert usual_bytes(small, gigabyte) == gigabyte // 4
    assert usual_bytes(large, None) == USUAL_BYTES_MIN


def test_only_what_is_long_and_new_is_wanted() -> None:
    parked = Parked(100)
    assert parked.wants(tokens(1), "") and not parked.wants(tokens(1)[:-1], "")
    parked.put(Entry((*tokens(1), 7), "", state(1)))
    assert not parked.wants(tokens(1), "") and parked.wants([*tokens(1), 8], "")
    assert parked.wants(tokens(1), "another tenant")
    assert not Parked(0).wants(tokens(1), "")


few = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(st.tuples(few, st.sampled_from("ab"), st.integers(1, 9)), max_size=30), few)
def test_bytes_add_up_and_a_match_is_the_longest_that_is_left(
    puts: list[tuple[list[int], str, int]], wanted: list[int]
) -> None:
    parked = Parked(25)
    for content, salt, size in puts:
        parked.put(Entry(tuple(content), salt, state(size)))
    kept = list(parked._entries.values())
    assert parked.bytes == sum(entry.state.nbytes for entry in kept) <= 25
    lengths = [common_length(wanted, list(entry.tokens)) for entry in kept if entry.salt == "a"]
    entry, length = parked.match(wanted, "a")
    assert length == max(lengths, default=0)
    assert (entry is None) == (length == 0)
