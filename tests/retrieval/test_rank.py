from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.embedding.windows import Windows, passage_vectors, unit
from retrieval.candidate import Candidate, ChunkKey, Scored
from retrieval.rank import reordered, window_similarity

DIMENSIONS = 16


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
