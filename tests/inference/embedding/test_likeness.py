from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.embedding.likeness import alike, likeness
from inference.embedding.windows import unit


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
