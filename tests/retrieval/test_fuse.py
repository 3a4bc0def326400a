from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.fuse import fuse

shares = st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=30)


def test_words_add_at_most_their_weight_and_do_so_for_the_best() -> None:
    scores = fuse(np.array([0.5, 0.5, 0.5]), np.array([0.4, 0.2, 0.0]), method="scores", lexical_weight=0.1)
    assert scores == pytest.approx([0.6, 0.55, 0.5])


def test_without_words_the_similarity_is_the_score() -> None:
    scores = fuse(np.array([0.5, 0.3]), np.zeros(2), method="scores", lexical_weight=0.1)
    assert scores == pytest.approx([0.5, 0.3])


def test_without_similarity_the_share_of_words_is_the_score() -> None:
    scores = fuse(None, np.array([0.2, 0.9]), method="scores", lexical_weight=0.1)
    assert scores == pytest.approx([0.2, 0.9])


def test_the_best_of_both_lists_has_rank_score_one() -> None:
    scores = fuse(np.array([0.1, 0.9]), np.array([0.0, 0.4]), method="ranks", lexical_weight=0.1)
    assert scores[1] == pytest.approx(1.0)
    assert 0 < scores[0] < 0.5  # in one list only


def test_by_rank_a_little_nearer_counts_as_much_as_much_nearer() -> None:
    near = fuse(np.array([0.50, 0.51]), np.zeros(2), method="ranks", lexical_weight=0.1)
    far = fuse(np.array([0.10, 0.90]), np.zeros(2), method="ranks", lexical_weight=0.1)
    assert near == pytest.approx(far)


def test_no_candidates_have_no_scores() -> None:
    assert len(fuse(np.empty(0), np.empty(0), method="scores", lexical_weight=0.1)) == 0
    assert len(fuse(np.empty(0), np.empty(0), method="ranks", lexical_weight=0.1)) == 0


@given(shares)
def test_scores_stay_between_zero_and_one(evidence: list[tuple[float, float]]) -> None:
    similarity, coverage = (np.array(side) for side in zip(*evidence, strict=True))
    for scores in (
        fuse(similarity, coverage, method="scores", lexical_weight=0.1),
        fuse(similarity, coverage, method="ranks", lexical_weight=0.1),
        fuse(None, coverage, method="scores", lexical_weight=0.1),
    ):
        assert len(scores) == len(evidence)
        assert np.all((scores >= 0) & (scores <= 1))


@given(shares)
def test_more_of_both_never_scores_less(evidence: list[tuple[float, float]]) -> None:
    similarity, coverage = (np.array(side) for side in zip(*evidence, strict=True))
    scores = fuse(similarity, coverage, method="scores", lexical_weight=0.1)
    for one in range(len(scores)):
        better = (similarity >= similarity[one]) & (coverage >= coverage[one])
        assert np.all(scores[better] >= scores[one] - 1e-12)
