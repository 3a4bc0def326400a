from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.embedding.windows import (
    WINDOW_STRIDE,
    WINDOW_TOKENS,
    alike,
    likeness,
    mean_vector,
    passage_vectors,
    query_vectors,
    unit,
)


def token_vectors(count: int, dimensions: int = 32) -> NDArray[np.float32]:
    return np.random.default_rng(count).standard_normal((count, dimensions)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 3, 13, 14, 15, 20, 21, 100, 256])
def test_windows_cover_every_word(count: int) -> None:
    passage = passage_vectors(token_vectors(count))
    words = count - 2 if count > 2 else count
    last_start = WINDOW_STRIDE * (len(passage.windows) - 1)
    assert last_start < words <= last_start + WINDOW_TOKENS
    assert passage.windows.dtype == np.int8
    assert len(passage.scales) == len(passage.windows)


def test_a_window_loses_little_in_a_byte_a_number() -> None:
    tokens = token_vectors(14)
    passage = passage_vectors(tokens)
    exact = unit(tokens[1:-1].mean(axis=0))
    assert exact @ (passage.windows[0] * passage.scales.astype(np.float32)[0]) > 0.998


def test_the_mean_counts_the_frame_and_the_words_do_not() -> None:
    tokens = token_vectors(5)
    assert np.allclose(mean_vector(tokens), unit(tokens.mean(axis=0)))
    assert np.allclose(query_vectors(tokens).tokens, unit(tokens[1:-1]))


def test_a_vector_of_zeros_stays_zero_instead_of_becoming_nan() -> None:
    passage = passage_vectors(np.zeros((5, 8), np.float32))
    assert not passage.windows.any()
    assert not passage.vector.any()


def vector(seed: int, dimensions: int = 384) -> NDArray[np.float32]:
    return unit(np.random.default_rng(seed).standard_normal(dimensions).astype(np.float32))


@pytest.mark.parametrize(("noise", "same"), [(0.0, True), (0.2, True), (0.5, False)])
def test_a_model_in_rougher_numbers_is_the_same_one(noise: float, same: bool) -> None:
    kept = likeness(vector(1))
    assert len(kept) == 384
    assert alike(kept, likeness(unit(vector(1) + np.float32(noise) * vector(2)))) is same


def test_models_trained_apart_or_of_other_dimensions_are_not_alike() -> None:
    assert not alike(likeness(vector(1)), likeness(vector(2)))
    assert not alike(likeness(vector(1)), likeness(-vector(1)))
    assert not alike(likeness(vector(1)), likeness(vector(1)[:383]))
