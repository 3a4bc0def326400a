"""The share of a model that a GPU gets."""

from __future__ import annotations

import pytest

from inference.bundled import CHAT_MODEL
from inference.config import EngineConfig
from inference.provisioning.memory import Footprint
from inference.provisioning.offload import ALL_LAYERS, are_all, gpu_layers, layers_that_fit, split

GB = 10**9
NEED = Footprint(weights=8 * GB, kv_cache=GB, working=0, draft=0, parked_max=0)  # of 8 layers and the output


@pytest.mark.parametrize(("room", "offloaded"), [(20, ALL_LAYERS), (9.1, ALL_LAYERS), (8.9, 8), (3.5, 3), (0.5, 0)])
def test_as_many_layers_are_offloaded_as_fit(room: float, offloaded: int) -> None:
    assert layers_that_fit(NEED, 8, room * GB) == offloaded


def test_steps_and_draft_take_room_from_the_layers() -> None:
    need = Footprint(weights=8 * GB, kv_cache=GB, working=GB, draft=2 * GB, parked_max=GB)
    assert layers_that_fit(need, 8, 6.5 * GB) == 3
    assert split(need, 8, 3) == pytest.approx((7 * GB, 6 * GB))
    assert split(need, 8, 0) == (13 * GB, 0)
    assert split(need, 8, ALL_LAYERS) == split(need, 8, 99) == (GB, 12 * GB)


def test_a_gpu_without_memory_gets_nothing() -> None:
    assert layers_that_fit(NEED, 8, 0) == 0


@pytest.mark.parametrize(("offloaded", "all_of_them"), [(ALL_LAYERS, True), (9, True), (8, False), (0, False)])
def test_the_output_is_one_more_layer(offloaded: int, all_of_them: bool) -> None:
    assert are_all(offloaded, 8) is all_of_them


def test_a_gpu_that_computes_all_layers_gets_longer_bites_of_prompts() -> None:
    config = EngineConfig(prefill_tokens_alone=256)
    assert config.offloaded.prefill_tokens_alone == 512 and config.offloaded.rows_max == config.rows_max + 256
    assert EngineConfig(prefill_tokens_alone=600).offloaded.prefill_tokens_alone == 600


def test_what_was_configured_holds() -> None:
    assert gpu_layers(EngineConfig(model_path=CHAT_MODEL, gpu_layers=3)) == 3
