"""The share of a model that a GPU gets."""

from __future__ import annotations

import pytest

from inference.bundled import CHAT_MODEL
from inference.config import EngineConfig
from inference.footprint import Footprint
from inference.offload import RESERVE_BYTES, SHARE, gpu_layers, layers_that_fit

NEED = Footprint(weights=8 * 10**9, kv_cache=10**9, working=0, draft=0, parked_max=0)  # of 8 layers and the output


def free_for(layers: float) -> int:
    return int((layers * 10**9 + RESERVE_BYTES) / SHARE)


@pytest.mark.parametrize(("room", "offloaded"), [(20, -1), (9.1, -1), (8.9, 8), (3.5, 3), (0.5, 0), (0, 0)])
def test_as_many_layers_are_offloaded_as_fit(room: float, offloaded: int) -> None:
    assert layers_that_fit(NEED, 8, free_for(room)) == offloaded


def test_a_gpu_without_memory_gets_nothing() -> None:
    assert layers_that_fit(NEED, 8, 0) == 0


def test_what_was_configured_holds() -> None:
    assert gpu_layers(EngineConfig(model_path=CHAT_MODEL, gpu_layers=3)) == 3
