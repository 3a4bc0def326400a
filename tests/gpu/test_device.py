"""A GPU computes what the CPU does, and one that breaks takes nothing along. `make test-gpu` runs these in software."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.attention import ALL, Q4_0, Q8_0, Attention
from inference.backend import Chunk
from inference.bundled import DRAFT_MODEL
from inference.config import EngineConfig
from inference.llama import LlamaContext, LlamaModel, computing, devices
from inference.provisioning.machine import room_of
from inference.provisioning.speed import isolated_paces
from inference.weight_placement import Split

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]  # a GPU in software compiles its shaders at first use

ROOT = Path(__file__).resolve().parents[2]
TOKENS = list(range(5, 29))
TOLERANCE = 0.5  # kernels round differently; a wrong one is off by whole logits


@contextmanager
def context_of(layers: int, split: str = "layer", **settings: Any) -> Iterator[LlamaContext]:
    with (
        closing(LlamaModel.load(DRAFT_MODEL, gpu_layers=layers, split=Split.parse(split))) as model,
        closing(LlamaContext(model, slots=3, context=64, rows_max=32, threads=1, **settings)) as context,
    ):
        yield context


class Heartbeat:
    """A thread that wants to run every millisecond; `longest_s` is the longest time that it could not."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last = perf_counter()
        self._over = threading.Event()
        self._beaten = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def beat(self) -> None:
        """Wait for one, so that what the last step held up is known."""
        self._beaten.clear()
        self._beaten.wait()

    def _run(self) -> None:
        while not self._over.wait(0.001):
            now = perf_counter()
            self.longest_s, self._last = max(self.longest_s, now - self._last), now
            self._beaten.set()


def first_row(layers: int, **settings: Any) -> NDArray[np.float32]:
    with context_of(layers, **settings) as context:
        row: NDArray[np.float32] = context.decode([Chunk(0, 0, TOKENS)])[0].copy()
        return row


@pytest.mark.parametrize("layers", [-1, 1])
def test_layers_on_the_gpu_compute_what_they_do_on_the_cpu(layers: int) -> None:
    assert np.abs(first_row(layers) - first_row(0)).max() < TOLERANCE


@pytest.mark.parametrize("mode", ALL, ids=str)
@pytest.mark.parametrize("kv_on_gpu", [True, False], ids=["cache there", "cache on the host"])
def test_every_attention_computes_what_it_does_on_the_cpu(mode: Attention, kv_on_gpu: bool) -> None:
    assert np.abs(first_row(-1, attention=mode, kv_on_gpu=kv_on_gpu) - first_row(0)).max() < TOLERANCE


@pytest.mark.parametrize("kv_type", [Q8_0, Q4_0])
def test_small_keys_and_values_lose_no_more_on_the_gpu_than_they_do_on_the_cpu(kv_type: str) -> None:
    flash = Attention(unified=True, flash=True)
    there, here = (
        np.abs(first_row(layers, attention=flash, kv_type=kv_type) - first_row(layers, attention=flash)).max()
        for layers in (-1, 0)
    )
    assert 0 < there < here + TOLERANCE  # a CPU rounds what it multiplies keys with, too


@pytest.mark.parametrize("mode", ALL, ids=str)
def test_a_conversation_on_the_gpu_is_forked_cut_saved_and_restored(mode: Attention) -> None:
    with context_of(-1, attention=mode) as context:
        context.decode([Chunk(0, 0, TOKENS)])
        next_row = context.decode([Chunk(0, len(TOKENS), [7])])[0].copy()
        context.truncate(0, len(TOKENS))
        context.fork(0, 1, len(TOKENS))
        context.restore(2, context.save(0))
        for slot in (0, 1, 2):
            row = context.decode([Chunk(slot, len(TOKENS), [7])])[0]
            assert np.abs(row - next_row).max() < TOLERANCE, slot


SWITCH_S = 0.02  # four times what a thread of Python may keep another waiting: in shorter steps there is nothing to see


def test_other_threads_go_on_while_a_gpu_computes() -> None:
    with context_of(-1) as context, Heartbeat() as heartbeat:
        shares = []
        for step in range(6):
            heartbeat.longest_s, began = 0.0, perf_counter()
            context.decode([Chunk(slot, 8 * step, TOKENS[:8]) for slot in range(3)])
            took_s = perf_counter() - began
            heartbeat.beat()
            shares.append(heartbeat.longest_s / max(took_s, SWITCH_S))
    assert min(shares[1:]) < 0.5  # the first compiles; a busy machine holds threads up, too, but not in every step


def test_a_step_is_over_when_it_says_so_also_where_nothing_is_read_from_it() -> None:
    with context_of(-1) as context:
        took_s, rest_s = [], []
        for slot in range(3):
            began = perf_counter()
            context.decode([Chunk(slot, 0, TOKENS, outputs=0)])
            took_s.append(perf_counter() - began)
            context.decode([Chunk(slot, len(TOKENS), [7])])
            rest_s.append(perf_counter() - began - took_s[-1])
    assert max(took_s[1:]) > min(rest_s[1:])  # 24 rows and one; the first compile


def test_no_layers_on_the_gpu_is_a_cpu_in_all() -> None:
    with context_of(0) as context:
        assert context.exact and context.streams


def test_the_fastest_attention_is_measured_on_the_gpu() -> None:
    paces = isolated_paces(DRAFT_MODEL, threads=1, gpu_layers=-1)
    assert [pace.attention for pace in paces] == ALL


def test_the_room_is_that_of_the_gpus_that_are_used() -> None:
    gpus = computing(devices(), Split())
    assert gpus
    room = room_of(EngineConfig())
    assert room.gpus == len(gpus) and room.gpu_free == sum(gpu.free_bytes for gpu in gpus)


TWO_DEVICES = """
import sys
import numpy as np
from inference.errors import ModelNotLoaded
from inference.llama import computing, devices
from inference.weight_placement import Split
from tests.gpu.test_device import TOKENS, Chunk, context_of
assert len(computing(devices(), Split())) == 2
rows = []
for layers, split in ((0, "layer"), (-1, "layer:1,1")):
    with context_of(layers, split) as context:
        rows.append(context.decode([Chunk(0, 0, TOKENS)])[0].copy())
print(float(np.abs(rows[0] - rows[1]).max()))
try:
    with context_of(-1, "row:1,1"):
        pass
except ModelNotLoaded as error:
    print(error)
"""


@pytest.mark.vulkan
def test_two_gpus_share_the_layers_of_a_model_and_say_that_they_cannot_share_rows() -> None:
    environment = {**os.environ, "GGML_VK_VISIBLE_DEVICES": "0,0"}  # the same device twice stands in for two
    command = [sys.executable, "-c", TWO_DEVICES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    difference, refusal = done.stdout.splitlines()
    assert float(difference) < TOLERANCE and "use --gpu-split layer" in refusal


@pytest.mark.vulkan
def test_a_device_that_is_lost_in_an_answer_fails_it_and_not_the_process(faulty: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.inference.lost_device", "lose"],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(faulty), "FAULTY_LOST": str(tmp_path / "lost")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    failed, refused, lost = done.stdout.splitlines()
    assert failed.startswith("the device failed: ") and refused == f"refused: {failed}" and lost == "lost: True"


@pytest.mark.vulkan
def test_what_the_memory_of_the_gpu_does_not_hold_goes_to_the_cpu(faulty: Path) -> None:
    script = (
        "import logging; logging.basicConfig(level='WARNING'); "
        "from inference.config import EngineConfig; from inference.model import ChatModel; "
        "ChatModel.load(EngineConfig(parallel=1, resident=0, context=512, threads=1)); print('loaded')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(faulty), "FAULTY_BYTES": "8000000"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "loaded" and "of its layers go there" in done.stderr
