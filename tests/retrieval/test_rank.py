from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.embedding.windows import Windows, passage_vectors, unit
from retrieval.candidate import Candidate, ChunkKey, Scored
from retrieval.rank import Scores, fuse, in_turns, reordered, window_similarity

DIMENSIONS = 16
shares = st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), min_size=1, max_size=30)
Make = Callable[..., Candidate]


def fused(similarity: Scores | None, coverage: Scores, exact: float = 0) -> Scores:
    """`exact` is what the first candidate alone holds."""
    alone = np.array([exact, *[0.0] * (len(coverage) - 1)])[: len(coverage)]
    return fuse(similarity, coverage, alone, lexical_weight=0.1, exact_weight=0.4)


def random(rows: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, DIMENSIONS)).astype(np.float32)


def passage(tokens: NDArray[np.float32]) -> Windows:
    made = passage_vectors(tokens)
    return Windows(made.windows, made.scales)


def test_the_passage_that_holds_the_words_in_one_place_comes_first() -> None:
    words = random(12, 1)
    topic = np.concatenate([random(30, 2), words, random(30, 3)])
    scores = window_similarity(unit(words), [passage(random(72, 4)), passage(topic), passage(random(72, 5))])
    assert int(scores.argmax()) == 1


def test_a_word_meets_the_window_that_fits_it_best() -> None:
    axes = np.eye(DIMENSIONS, dtype=np.float32)
    windows = Windows((axes[:2] * 127).astype(np.int8), np.full(2, 1 / 127, np.float16))
    scores = window_similarity(axes[[0, 1, 2]], [windows])
    assert scores == pytest.approx([2 / 3], abs=0.001)  # two words fit one window each, the third none


def test_no_passages_have_no_scores() -> None:
    assert len(window_similarity(unit(random(3, 1)), [])) == 0


@given(st.lists(st.integers(3, 60), min_size=1, max_size=12), st.integers(1, 9))
@settings(deadline=None)
def test_a_score_does_not_depend_on_the_other_passages(lengths: list[int], words: int) -> None:
    query = unit(random(words, 0))
    passages = [passage(random(length, length)) for length in lengths]
    together = window_similarity(query, passages)
    alone = [window_similarity(query, [one])[0] for one in passages]
    assert together == pytest.approx(alone, abs=1e-5)
    assert np.all(np.abs(together) <= 1.01)


def candidate(number: int) -> Candidate:
    return Candidate(
        key=ChunkKey("vs", "file", number),
        filename="a.md",
        title="A",
        heading="",
        text=f"text {number}",
        start=0,
        end=6,
        tokens=2,
        cosine=0.5,
        coverage=0.0,
    )


def test_a_cross_encoder_orders_the_head_and_leaves_the_rest_and_the_scores() -> None:
    ranked = [Scored(score, candidate(n)) for n, score in enumerate((0.9, 0.8, 0.7, 0.6))]
    after = reordered(ranked, np.array([-2.0, 3.0, 1.0]))
    assert [each.candidate.key.ordinal for each in after] == [1, 2, 0, 3]
    assert [each.score for each in after] == [0.9, 0.8, 0.7, 0.6]
    assert reordered(ranked, np.array([])) == ranked


def test_a_cross_encoder_leaves_each_models_scores_to_that_models_candidates() -> None:
    models = ["one", "other", "one", "other"]
    ranked = [
        Scored(score, replace(candidate(n), model=model))
        for n, (score, model) in enumerate(zip((0.9, 0.3, 0.8, 0.2), models, strict=True))
    ]
    after = reordered(ranked, np.array([1.0, 0.0, 3.0, 2.0]))
    assert [each.candidate.key.ordinal for each in after] == [2, 3, 0, 1]
    assert [each.score for each in after] == [0.9, 0.3, 0.8, 0.2]


def test_words_add_at_most_their_weight_and_do_so_for_the_best() -> None:
    scores = fused(np.array([0.5, 0.5, 0.5]), np.array([0.4, 0.2, 0.0]))
    assert scores == pytest.approx([0.6, 0.55, 0.5])


def test_without_words_the_similarity_is_the_score() -> None:
    scores = fused(np.array([0.5, 0.3]), np.zeros(2))
    assert scores == pytest.approx([0.5, 0.3])


def test_an_identifier_outranks_what_is_much_nearer_unless_it_is_little_of_the_question() -> None:
    similarity, none = np.array([0.4, 0.6]), np.zeros(2)
    whole, little = fused(similarity, none, exact=1.0), fused(similarity, none, exact=0.2)
    assert whole[0] > whole[1]
    assert little[0] < little[1]
    assert whole[1] == little[1] == pytest.approx(0.6)


def test_scores_above_one_keep_their_order() -> None:
    scores = fused(np.array([0.9, 0.95, 0.2]), np.ones(3), exact=2.0)
    assert scores[0] == 1.0
    assert 1.0 > scores[1] > scores[2] > 0.2


def test_a_share_of_words_above_one_still_scores_at_most_one() -> None:
    assert fused(None, np.array([0.8, 1.6])) == pytest.approx([0.5, 1.0])


def test_without_similarity_the_share_of_words_is_the_score() -> None:
    scores = fused(None, np.array([0.2, 0.9]))
    assert scores == pytest.approx([0.2, 0.9])


def test_no_candidates_have_no_scores() -> None:
    assert len(fused(np.empty(0), np.empty(0))) == 0


@given(shares)
def test_scores_stay_between_zero_and_one(evidence: list[tuple[float, float]]) -> None:
    similarity, coverage = (np.array(side) for side in zip(*evidence, strict=True))
    for scores in (fused(similarity, coverage), fused(None, coverage)):
        assert len(scores) == len(evidence)
        assert np.all((scores >= 0) & (scores <= 1))


@given(shares)
def test_more_of_both_never_scores_less(evidence: list[tuple[float, float]]) -> None:
    similarity, coverage = (np.array(side) for side in zip(*evidence, strict=True))
    scores = fused(similarity, coverage)
    for one in range(len(scores)):
        better = (similarity >= similarity[one]) & (coverage >= coverage[one])
        assert np.all(scores[better] >= scores[one] - 1e-12)


def test_the_lists_take_turns_whatever_their_scores(make_candidate: Make) -> None:
    high = [Scored(score, make_candidate(n)) for n, score in enumerate((0.9, 0.8, 0.7))]
    low = [Scored(0.3, make_candidate(9))]
    assert in_turns([low, high]) == [high[0], low[0], high[1], high[2]]
    assert in_turns([high]) == high
    assert in_turns([[], low]) == low
    assert in_turns([]) == in_turns([[], []]) == []


def test_of_one_rank_who_holds_more_of_the_words_comes_first(make_candidate: Make) -> None:
    some, more = (Scored(0.5, replace(make_candidate(n), coverage=c)) for n, c in ((0, 0.2), (1, 0.9)))
    assert in_turns([[some], [more]]) == [more, some]
