"""Measures tokens per second on this machine; prints JSON.

`python -m inference.provisioning.probe MODEL [--threads N] [--gpu-layers N]`

Run in a subprocess: it may take all memory, and crashes on a bad build. The fastest step of each kind counts, which is
what the machine can do without other load.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from inference.backend import Rows
from inference.config import default_threads
from inference.llama import LlamaContext, LlamaModel
from inference.provisioning.isolated_process import run_isolated

PREFILL_ROWS = 64  # a multiple that suits the kernels; more rows are little faster and much slower to measure
PREFILL_STEPS, DECODE_STEPS = 8, 32  # enough for the choice of threads to settle
BUDGET_S = 30.0  # per kind: a large model on a small machine gets fewer steps
TIMEOUT_S = 300.0  # both budgets, and loading a large file from a slow disk
CONTEXT = PREFILL_ROWS * PREFILL_STEPS + DECODE_STEPS


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of one stream."""

    prefill: float
    decode: float


def measure(path: Path, *, threads: int, gpu_layers: int) -> Speed:
    """Blocks for seconds, or for a minute with a large model. Raises InferenceError."""
    model = LlamaModel.load(path, gpu_layers=gpu_layers)
    context = LlamaContext(model, slots=1, context=CONTEXT, rows_max=PREFILL_ROWS, threads=threads)

    def step(rows: int) -> None:
        start = context.length(0)
        tokens = [(start + row) % model.vocabulary_size for row in range(rows)]
        context.decode([Rows(0, start, tokens)])

    prefill = PREFILL_ROWS / _fastest(lambda: step(PREFILL_ROWS), range(PREFILL_STEPS))
    decode = 1 / _fastest(lambda: step(1), range(DECODE_STEPS))
    context.close()
    model.close()
    return Speed(prefill, decode)


def measure_isolated(path: Path, *, threads: int, gpu_layers: int) -> Speed:
    """The same in a separate process. Raises RunFailed."""
    options = ["--threads", str(threads), "--gpu-layers", str(gpu_layers)]
    return Speed(**json.loads(run_isolated("inference.provisioning.probe", str(path), *options, timeout_s=TIMEOUT_S)))


def _fastest(step: Callable[[], None], times: Iterable[int]) -> float:
    """Seconds of the fastest step within the budget."""
    fastest, began = float("inf"), perf_counter()
    for _ in times:
        started = perf_counter()
        step()
        fastest = min(fastest, perf_counter() - started)
        if perf_counter() - began > BUDGET_S:
            break
    return fastest


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--gpu-layers", type=int, default=-1)
    options = parser.parse_args()
    speed = measure(options.model, threads=options.threads or default_threads(), gpu_layers=options.gpu_layers)
    print(json.dumps(asdict(speed)))
