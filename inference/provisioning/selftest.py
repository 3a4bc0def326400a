"""`python -m inference.provisioning.selftest`: does llama.cpp compute on this machine?

Run in a subprocess: a build with instructions that the CPU lacks or the compiler got wrong does not fail, it crashes.
Decodes 1, 5 and 64 rows, because each uses different kernels. Exit code 0: all logits are finite, the results agree,
and those of the bundled model are what right builds compute, because a kernel may be wrong for any number of rows. It
prints where it computed: a GPU build that finds no GPU computes on the CPU, and passes there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference.adapter import Adapter
from inference.backend import Chunk
from inference.bundled import CHAT_MODEL
from inference.config import default_threads
from inference.errors import InferenceError
from inference.llama import Device, LlamaContext, LlamaModel, devices

ROWS = 64
# Of `disagreement`. Kernels round activations differently, by an amount that depends on the model. Right builds have up
# to 0.0008 for real weights in 4 and 8 bits, and 0.0001 for the bundled model; logits of other tokens, or with a part
# left out, have 0.1 to 1.
DISAGREEMENT_MAX = 0.02
# Logits of the bundled model for each so many tokens; they change with that model.
REFERENCE_STEP = 160
REFERENCE: NDArray[np.float32] = np.array([
    -10.04, -14.20, -13.75, -14.24, -15.64, -13.84, -14.59, -12.45, -14.42, -14.18, -12.25,
    -12.94, -14.93, -15.11, -12.90, -12.60, -12.83, -13.03, -15.11, -14.76, -14.59, -13.75,
    -14.51, -14.21, -8.90, -12.71, -13.62, -12.23, -13.69, -12.57, -15.13, -14.84,
], np.float32)  # fmt: skip


def check(path: Path, adapters: Sequence[Adapter] = ()) -> None:
    """Raises AssertionError for a build that computes wrongly, and InferenceError for a model that cannot be computed;
    may crash the process, which is what this is meant to find out."""
    difference = disagreement(_agreed(CHAT_MODEL)[::REFERENCE_STEP], REFERENCE)
    assert difference <= DISAGREEMENT_MAX, f"the bundled model gives wrong logits (they differ by {difference:.4f})"
    if (path != CHAT_MODEL or adapters) and not np.isfinite(_agreed(path, adapters)).all():
        raise InferenceError(f"{path.name} gives no finite logits: its file is damaged")


def _agreed(path: Path, adapters: Sequence[Adapter] = ()) -> NDArray[np.float32]:
    """The logits [vocabulary] of the model, equal for all numbers of rows, or none of them finite."""
    model = LlamaModel.load(path, gpu_layers=-1)
    context = LlamaContext(model, slots=3, context=256, rows_max=ROWS, threads=default_threads(), adapters=adapters)
    tokens = [t % model.vocabulary_size for t in range(5, 5 + ROWS)]
    found = {rows: _last_logits(context, slot, tokens, rows) for slot, rows in enumerate((ROWS, 1, 5))}
    context.close()
    model.close()
    if not any(np.isfinite(logits).all() for logits in found.values()):
        return found[ROWS]
    for rows, logits in found.items():
        difference = disagreement(logits, found[ROWS])
        assert difference <= DISAGREEMENT_MAX, f"{rows} rows at a time give other logits (by {difference:.4f})"
    return found[ROWS]


def disagreement(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Of two rows of logits [vocabulary]: 0 if they are the same distribution, about 1 if they have nothing in common.

    It is one minus their correlation, so it depends neither on the scale of a model's logits nor on an offset of all of
    them, which changes no probability. Infinite if a logit is not finite.
    """
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return inf
    first, second = (logits.astype(np.float64) - logits.mean(dtype=np.float64) for logits in (one, other))
    scale = float(np.linalg.norm(first) * np.linalg.norm(second))
    return 1 - float(first @ second) / scale if scale else float(np.abs(first - second).max())


def _last_logits(context: LlamaContext, slot: int, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
    """Of the last token, computed with this many rows a step."""
    logits = np.empty(0, np.float32)
    for start in range(0, len(tokens), rows):
        logits = context.decode([Chunk(slot, start, list(tokens[start : start + rows]))])[0]
    return np.array(logits, np.float32)


def place(found: Sequence[Device]) -> str:
    """Where a model with all layers offloaded is computed."""
    gpus = [device.description for device in found if device.is_gpu]
    return f"the GPU ({', '.join(gpus)})" if gpus else "the CPU"


def self_test(path: Path, adapters: Sequence[Adapter] = ()) -> str:
    """The result in words; otherwise as `check`."""
    check(path, adapters)
    return f"1, 5 and 64 rows agree on {place(devices())}"


if __name__ == "__main__":
    print(self_test(CHAT_MODEL))
