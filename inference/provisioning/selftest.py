"""`python -m inference.provisioning.selftest [MODEL]`: does this build of llama.cpp compute on this machine?

Run in a subprocess: a build with instructions that the CPU lacks or the compiler got wrong does not fail, it crashes.
Decodes 1, 5 and 64 rows, because each uses different kernels. Exit code 0: all logits are finite, and the results
agree. It prints where it computed: a GPU build that finds no GPU computes on the CPU, and passes there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inference.backend import Rows
from inference.bundled import CHAT_MODEL
from inference.config import default_threads
from inference.llama import Device, LlamaContext, LlamaModel, devices

ROWS = 64
# Kernels round differently; a wrong one is off by whole logits.
TOLERANCE = 0.5


def check(path: Path) -> None:
    """Raises AssertionError or InferenceError; may crash the process, which is what this is meant to find out."""
    model = LlamaModel.load(path, gpu_layers=-1)
    context = LlamaContext(model, slots=3, context=256, rows_max=ROWS, threads=default_threads())
    tokens = [t % model.vocabulary_size for t in range(5, 5 + ROWS)]
    whole = context.decode([Rows(0, 0, tokens)])[0].copy()
    for slot, rows in ((1, 1), (2, 5)):
        for start in range(0, ROWS, rows):
            piece = tokens[start : start + rows]
            row = context.decode([Rows(slot, start, piece)])[0]
        difference = float(np.abs(row - whole).max())
        assert np.isfinite(row).all() and difference < TOLERANCE, f"{rows} rows at a time differ by {difference}"
    context.close()
    model.close()


def place(found: Sequence[Device]) -> str:
    """Where a model with all layers offloaded is computed."""
    gpus = [device.description for device in found if device.is_gpu]
    return f"the GPU ({', '.join(gpus)})" if gpus else "the CPU"


if __name__ == "__main__":
    check(Path(sys.argv[1]) if len(sys.argv) > 1 else CHAT_MODEL)
    print(f"1, 5 and 64 rows agree on {place(devices())}")
