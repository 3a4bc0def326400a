"""Where weights go: how they are divided, and which GPUs get them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inference.bundled import CHAT_MODEL
from inference.llama import Device, LlamaModel, computing
from inference.provisioning.fit import ALL_LAYERS, layers_that_fit
from inference.provisioning.machine import free_together, own_memory
from inference.provisioning.memory import Footprint
from inference.weight_placement import Split

CPU = Device("CPU", "Some CPU", False, 10, 10)
FIRST, SECOND = (Device(f"CUDA{number}", "Some GPU", True, 10, 10) for number in range(2))
INTEGRATED = Device("Vulkan0", "Some GPU in a CPU", True, 10, 10, is_integrated=True)
APPLE = Device("MTL0", "Some GPU of Apple", True, 10, 10)
NEED = Footprint(weights=80, kv_cache=20, working=10, draft=0, parked_max=0)


@pytest.mark.parametrize(
    ("text", "split"),
    [("layer", Split()), ("row", Split("row")), ("none", Split("none")), ("layer:3,1", Split("layer", (3.0, 1.0)))],
)
def test_a_split_is_read(text: str, split: Split) -> None:
    assert Split.parse(text) == split


@pytest.mark.parametrize(
    ("found", "split", "used"),
    [
        ([FIRST, SECOND, CPU], "layer", [FIRST, SECOND]),
        ([FIRST, SECOND, CPU], "none", [FIRST]),
        ([FIRST, SECOND, CPU], "layer:0,1", [SECOND]),
        ([FIRST, INTEGRATED, CPU], "layer", [FIRST]),
        ([INTEGRATED, CPU], "layer", [INTEGRATED]),
        ([CPU], "layer", []),
    ],
)
def test_gpus_are_used_as_llama_cpp_uses_them(found: list[Device], split: str, used: list[Device]) -> None:
    assert computing(found, Split.parse(split)) == used


@pytest.mark.parametrize(
    ("split", "together"),
    [("layer", 20), ("layer:1,1", 20), ("layer:3,1", 13), ("row:1,4", 12), ("layer:0,1", 10), ("layer:1,1,5", 20)],
)
def test_with_proportions_the_first_gpu_that_is_full_ends_a_model(split: str, together: int) -> None:
    parsed = Split.parse(split)
    assert free_together(computing([FIRST, SECOND, CPU], parsed), parsed) == together


@pytest.mark.parametrize(
    ("gpus", "own"),
    [
        ([FIRST], float("inf")),
        ([APPLE], 0),
        ([INTEGRATED], 0),
        ([replace(INTEGRATED, memory_bytes=112)], 80),  # 96 that the firmware set aside, and half of the rest
    ],
)
def test_what_a_gpu_in_the_cpu_holds_is_taken_from_the_host(gpus: list[Device], own: float) -> None:
    assert own_memory(gpus, 32) == own
    assert own_memory(gpus, None) == float("inf")


def test_metal_is_called_by_its_name() -> None:
    assert (APPLE.backend, FIRST.backend, INTEGRATED.backend) == ("Metal", "CUDA", "Vulkan")


def test_each_of_several_gpus_needs_room_for_a_step() -> None:
    """Ten layers and the output: a tenth of 100 bytes each."""
    assert layers_that_fit(NEED, 9, 110) == ALL_LAYERS
    assert layers_that_fit(NEED, 9, 110, gpus=2) == 8
    assert layers_that_fit(replace(NEED, weights=180), 9, 110) == 5


@pytest.mark.parametrize("mode", ["auto", "mmap", "mlock", "read"])
def test_progress_grows_to_the_end_however_the_file_is_loaded(mode: str) -> None:
    shares: list[float] = []
    model = LlamaModel.load(CHAT_MODEL, load_mode=mode, progress=shares.append)
    model.close()
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 1
