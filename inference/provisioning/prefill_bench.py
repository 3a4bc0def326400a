"""Measures the cost of a prefill step by its number of tokens, to find a device's best size; prints JSON.

`python -m inference.provisioning.prefill_bench MODEL [--gpu-layers N] [--unified] [--flash]`

Run in a subprocess, like `attention_bench`. A GPU idles between two small steps; larger ones make the other streams of
a step wait, and take memory. The fastest step of each size counts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from time import perf_counter

from inference.attention import Attention
from inference.backend import Rows
from inference.config import default_threads
from inference.llama import LlamaContext, LlamaModel
from inference.provisioning.isolated_process import run_isolated

# Sizes that are multiples of the kernels' tiles. Beyond them, the results of a step take more memory than they gain.
SIZES = (128, 256, 512, 1024)
ROUNDS = 5
BUDGET_S = 20.0  # sizes not reached by then are not judged
TIMEOUT_S = 300.0
ENOUGH = 0.95  # of the best tokens per second: what a larger step gains beyond that is noise


def best_size(steps_ms: Mapping[int, float]) -> int:
    """The smallest size with about as many tokens per second as the best."""
    speeds = {size: size / ms for size, ms in steps_ms.items()}
    return min(size for size, speed in speeds.items() if speed >= ENOUGH * max(speeds.values()))


def measure(path: Path, *, attention: Attention, gpu_layers: int) -> dict[int, float]:
    """Milliseconds by size. Blocks for seconds. Raises InferenceError."""
    with (
        closing(LlamaModel.load(path, gpu_layers=gpu_layers)) as model,
        closing(
            LlamaContext(
                model,
                slots=1,
                context=max(SIZES),
                rows_max=max(SIZES),
                threads=default_threads(),
                attention=attention,
            )
        ) as context,
    ):
        found: dict[int, float] = {}
        began = perf_counter()
        for size in SIZES:
            _step_ms(context, size)  # compiles the kernels of this size
            found[size] = _step_ms(context, size)
            if perf_counter() - began > BUDGET_S:
                break
        for _ in range(ROUNDS):
            for size in found:
                found[size] = min(found[size], _step_ms(context, size))
            if perf_counter() - began > BUDGET_S:
                break
        return found


def measure_isolated(path: Path, *, attention: Attention, gpu_layers: int) -> dict[int, float]:
    """The same in a separate process. Raises RunFailed."""
    flags = [f"--{name}" for name in ("unified", "flash") if getattr(attention, name)]
    arguments = [str(path), "--gpu-layers", str(gpu_layers), *flags]
    printed = run_isolated("inference.provisioning.prefill_bench", *arguments, timeout_s=TIMEOUT_S)
    return {int(size): ms for size, ms in json.loads(printed).items()}


def _step_ms(context: LlamaContext, size: int) -> float:
    tokens = [token % context.vocabulary_size for token in range(size)]
    started = perf_counter()
    context.decode([Rows(0, 0, tokens)])
    took = perf_counter() - started
    context.truncate(0, 0)
    return took * 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--gpu-layers", type=int, default=-1)
    parser.add_argument("--unified", action="store_true")
    parser.add_argument("--flash", action="store_true")
    options = parser.parse_args()
    attention = Attention(options.unified, options.flash)
    print(json.dumps(measure(options.model, attention=attention, gpu_layers=options.gpu_layers)))
