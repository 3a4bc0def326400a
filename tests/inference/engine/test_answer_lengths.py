"""How long answers go on is learned from those that ended, also from those that were ended."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.forecast import NEWEST, AnswerLengths


def of(*tokens: int, limited: bool = False) -> AnswerLengths:
    lengths = AnswerLengths()
    for each in tokens:
        lengths.add(each, limited=limited)
    return lengths


def left(lengths: AnswerLengths, generated: int, max_tokens: int, chances: Sequence[float]) -> list[int]:
    [row] = lengths.left(np.array([generated]), np.array([max_tokens]), np.array([chances])).tolist()
    return list(row)


def test_an_answer_goes_on_as_long_as_those_did_that_came_so_far() -> None:
    lengths = of(10, 20, 60)
    assert lengths.mean == 30
    assert left(lengths, 0, 100, [0.1, 0.5, 0.9]) == [10, 20, 60]
    assert left(lengths, 15, 100, [0.1, 0.9]) == [5, 45]
    assert left(lengths, 15, 18, [0.9]) == [3]  # it may say no more


def test_of_the_answers_longer_than_all_before_half_get_twice_as_long() -> None:
    assert left(of(10, 20), 30, 10_000, [0.5, 0.75, 0.9]) == [30, 90, 270]
    assert left(of(10, 20), 30, 100, [0.9]) == [70]  # it may say no more


def test_where_all_answers_are_ended_by_their_limit_the_next_one_will_be_too() -> None:
    lengths = of(5, 10, 50, limited=True)
    assert left(lengths, 3, 50, [0.01, 0.99]) == [47, 47]


def test_an_answer_that_was_ended_early_says_nothing_of_one_that_may_be_a_thousand_times_as_long() -> None:
    lengths = of(4, limited=True)
    assert left(lengths, 0, 4096, [0.5, 0.9]) == [8, 40]


def test_beyond_the_longest_answer_the_share_that_did_not_end_is_spread() -> None:
    """Three of four ended, and one was cut at 40: the last quarter begins there."""
    lengths = of(10, 20, 30)
    lengths.add(40, limited=True)
    assert left(lengths, 0, 10_000, [0.7, 0.875, 0.9375]) == [30, 80, 160]
    assert left(lengths, 35, 10_000, [0.5, 0.75]) == [45, 125]


def test_answers_that_were_ended_make_others_look_no_shorter() -> None:
    """Half of them may have thirty tokens, and would have gone on."""
    rng, lengths, natural = random.Random(1), AnswerLengths(), list[int]()
    for number in range(NEWEST):
        natural.append(tokens := rng.randint(1, 100))
        most = 30 if number % 2 else 1000
        lengths.add(min(tokens, most), limited=tokens >= most)
    [usual] = left(lengths, 0, 1000, [0.5])
    assert usual == pytest.approx(median(natural), rel=0.25)
    assert lengths.mean < 0.75 * usual


def test_only_the_newest_are_looked_at() -> None:
    lengths = of(*[1000] * NEWEST, *[10] * NEWEST)
    assert (lengths.mean, left(lengths, 0, 5000, [0.99])) == (10, [10])


def test_several_answers_are_looked_up_as_each_of_them_alone() -> None:
    lengths, chances = of(10, 20, 60), [[0.1, 0.9], [0.9, 0.1], [0.5, 0.5]]
    said, most = [0, 15, 70], [100, 18, 80]
    together = lengths.left(np.array(said), np.array(most), np.array(chances))
    assert together.tolist() == [left(lengths, *each) for each in zip(said, most, chances, strict=True)]


@given(
    st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=100),
    st.integers(0, 600),
    st.integers(1, 600),
    st.lists(st.floats(0.001, 0.999), min_size=1, max_size=9),
)
def test_what_is_left_is_at_least_a_token_no_more_than_is_allowed_and_more_with_more_chance(
    newest: list[tuple[int, bool]], said: int, more: int, chances: list[float]
) -> None:
    lengths = AnswerLengths()
    for tokens, limited in newest:
        lengths.add(tokens, limited=limited)
    further = left(lengths, said, said + more, sorted(chances))
    assert further == sorted(further)
    assert all(1 <= each <= more for each in further)
