"""Measures against values that were worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.quality.measures import Judgement, Target, judge, quality
from retrieval.records import SourceSpan

HERE = SourceSpan("a", 100, 200)


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (Target("a"), True),  # the whole file
        (Target("b"), False),
        (Target("a", 100, 200), True),
        (Target("a", 0, 1000), True),  # a chunk of a long section
        (Target("a", 140, 150), True),  # a short quote in a chunk
        (Target("a", 150, 250), True),  # half of it
        (Target("a", 151, 251), False),  # a neighbour that overlaps
        (Target("a", 195, 205), True),  # half of the shorter one
        (Target("a", 196, 206), False),
        (Target("a", 200, 210), False),  # it ends where the passage does
    ],
)
def test_a_passage_meets_a_target_of_which_it_shares_half(target: Target, met: bool) -> None:
    assert target.is_met_by(HERE) is met


def test_the_first_passage_that_meets_a_target_gains_by_it() -> None:
    judgement = judge([SourceSpan("x", 0, 9), HERE, HERE], [Target("a")])
    assert judgement.met == ((), (1.0,), ())
    assert judgement.reciprocal_rank == 0.5
    assert (judgement.recall(1), judgement.recall(5)) == (0.0, 1.0)
    assert judgement.ndcg == pytest.approx(1 / math.log2(3))


def test_recall_counts_targets_and_grades_weigh_gains() -> None:
    judgement = Judgement(met=((1.0,), (), (2.0,)), wanted=(2.0, 1.0, 1.0))
    assert (judgement.recall(1), judgement.recall(3)) == pytest.approx((1 / 3, 2 / 3))
    ideal = 2 + 1 / math.log2(3) + 1 / math.log2(4)
    assert judgement.ndcg == pytest.approx((1 + 2 / math.log2(4)) / ideal)


def test_what_stands_behind_the_tenth_rank_does_not_count() -> None:
    judgement = judge([SourceSpan("x", 0, 1)] * 10 + [HERE], [Target("a")])
    assert (judgement.reciprocal_rank, judgement.ndcg, judgement.recall(20)) == (0.0, 0.0, 1.0)


def test_a_passage_over_the_edge_of_two_targets_is_not_better_than_perfect() -> None:
    judgement = judge([HERE], [Target("a", 100, 150), Target("a", 150, 200)])
    assert judgement.ndcg == 1.0
    assert judgement.recall(1) == 1.0


def test_nothing_found_is_nothing_gained() -> None:
    judgement = judge([], [Target("a")])
    assert (judgement.reciprocal_rank, judgement.ndcg, judgement.recall(20)) == (0.0, 0.0, 0.0)


_SPANS = st.lists(st.builds(lambda f, s, n: SourceSpan(f, s, s + n), st.sampled_from("ab"), st.integers(0, 50),
                            st.integers(1, 30)), max_size=15)  # fmt: skip
_TARGETS = st.lists(st.builds(lambda f, s, n, g: Target(f, s, s + n, g), st.sampled_from("ab"), st.integers(0, 50),
                              st.integers(1, 30), st.sampled_from([1.0, 2.0])), min_size=1, max_size=5)  # fmt: skip


@given(spans=_SPANS, targets=_TARGETS)
def test_every_measure_is_a_share(spans: list[SourceSpan], targets: list[Target]) -> None:
    measured = quality([judge(spans, targets)])
    assert all(0 <= value <= 1 for value in (*measured.recall.values(), measured.mrr, measured.ndcg))
    assert list(measured.recall.values()) == sorted(measured.recall.values())


def test_means_are_over_questions() -> None:
    found, lost = judge([HERE], [Target("a")]), judge([HERE], [Target("b")])
    measured = quality([found, lost, lost, lost])
    assert (measured.mrr, measured.ndcg, measured.recall[5]) == (0.25, 0.25, 0.25)
