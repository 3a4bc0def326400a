"""The self-test tells kernels that round differently from those that compute something else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from deploy.weights import weights
from inference.backend import Chunk
from inference.bundled import CHAT_MODEL
from inference.errors import InferenceError
from inference.llama import LlamaContext
from inference.provisioning.selftest import DISAGREEMENT_MAX, check, disagreement

LOGITS = np.random.default_rng(1).normal(0, 3, 5_000).astype(np.float32)
NOISE = np.random.default_rng(2).normal(0, 1, LOGITS.size).astype(np.float32)


def test_rounding_and_an_offset_are_no_disagreement() -> None:
    assert disagreement(LOGITS, LOGITS) == pytest.approx(0)
    assert disagreement(LOGITS + np.float32(0.1) * NOISE + np.float32(0.3), LOGITS) < DISAGREEMENT_MAX / 10
    assert disagreement(LOGITS, LOGITS + np.float32(0.1) * NOISE) < DISAGREEMENT_MAX


@pytest.mark.parametrize(
    "wrong",
    [
        np.roll(LOGITS, 1),
        -LOGITS,
        LOGITS * np.tile([1, 1, 1, 0], LOGITS.size // 4),
        np.zeros_like(LOGITS),
        LOGITS * np.nan,
    ],
    ids=["shifted", "negative", "a quarter missing", "nothing", "not finite"],
)
def test_other_logits_are_a_disagreement(wrong: NDArray[np.float32]) -> None:
    assert disagreement(wrong.astype(np.float32), LOGITS) > DISAGREEMENT_MAX


def test_real_weights_in_four_bits_pass() -> None:
    check(weights())


Spoil = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("spoil", [lambda logits: logits[..., ::-1], lambda logits: logits * np.nan])
def test_kernels_for_few_rows_that_compute_something_else_are_found(
    monkeypatch: pytest.MonkeyPatch, rows: int, spoil: Spoil
) -> None:
    """Simulated, by spoiling the logits of such steps."""
    decode = LlamaContext.decode

    def spoilt(context: LlamaContext, batch: Sequence[Chunk]) -> NDArray[np.float32]:
        logits = decode(context, batch)
        return spoil(logits) if rows // 2 < len(batch[0].tokens) <= rows else logits

    monkeypatch.setattr(LlamaContext, "decode", spoilt)
    with pytest.raises(AssertionError, match=f"^{rows} rows at a time"):
        check(CHAT_MODEL)


# The kernel returns at once; in the loaded library itself, so that this process computes as a broken build does.
BROKEN = """
import ctypes, mmap, platform, sys
from inference.bundled import CHAT_MODEL
from inference.provisioning.selftest import check
path = next(line.split()[-1] for line in open("/proc/self/maps") if "libggml-cpu" in line)
address = ctypes.cast(getattr(ctypes.CDLL(path), sys.argv[1]), ctypes.c_void_p).value
page = address // mmap.PAGESIZE * mmap.PAGESIZE
all_rights = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), all_rights) == 0
returns = b"\\xc0\\x03\\x5f\\xd6" if platform.machine() == "aarch64" else b"\\xc3"
ctypes.memmove(address, returns, len(returns))
check(CHAT_MODEL)
"""


@pytest.mark.parametrize("kernel", ["glu", "rope", "soft_max", "mul_mat"])
def test_a_kernel_that_computes_nothing_is_blamed_on_the_build(kernel: str) -> None:
    """Without the activation, all rows are wrong in the same way; without products, nothing is finite."""
    broken = [sys.executable, "-c", BROKEN, f"ggml_compute_forward_{kernel}"]
    ended = subprocess.run(broken, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60)
    assert ended.stderr.splitlines()[-1].startswith("AssertionError: ")


def test_a_damaged_tensor_is_blamed_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(CHAT_MODEL.read_bytes())
    reader = gguf.GGUFReader(path, "r+")
    norm = next(tensor for tensor in reader.tensors if tensor.name == "output_norm.weight")
    norm.data[:] = np.nan
    reader.data.flush()
    with pytest.raises(InferenceError, match="damaged"):
        check(path)
