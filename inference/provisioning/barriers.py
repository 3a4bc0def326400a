"""Measures whether the compute threads wait for each other without sleeping; prints JSON.

`python -m inference.provisioning.barriers`

A step has some hundred barriers between its operations. Where threads sleep there, a small model takes several times as
long. Two things make them sleep: the settings of OpenMP, and more of its threads in the process than cores. So this
computes as a worker does, on another thread than the one that loaded the model, and in a process of its own.
"""

from __future__ import annotations

import json
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from inference.backend import Rows
from inference.bundled import CHAT_MODEL
from inference.config import default_threads
from inference.llama import LlamaContext, LlamaModel
from inference.provisioning.isolated_process import run_isolated

TASKS = Path("/proc/self/task")
CONTEXT = 256
# Another program on the same cores makes threads sleep too, but not in every step.
UNDISTURBED_S, TIMEOUT_S = 5.0, 60.0


@dataclass(frozen=True, slots=True)
class Barriers:
    """`threads` should compute; `busy` did while steps were computed and `resting` were left afterwards, beside the one
    that ran the steps (0 where the system has no list of threads). `sleeps`: how often they slept in the step in which
    they did so least often."""

    threads: int
    busy: int
    resting: int
    sleeps: int


def measure(threads: int) -> Barriers:
    """Blocks for up to UNDISTURBED_S. Raises InferenceError."""
    before = _tasks()
    with ThreadPoolExecutor(1) as engine:
        engine.submit(_tasks).result()
        with closing(LlamaModel.load(CHAT_MODEL)) as model:
            context = LlamaContext(model, slots=1, context=CONTEXT, rows_max=1, threads=threads, threads_min=threads)
            with closing(context):
                sleeps = engine.submit(_fewest_sleeps, context).result()
                busy = _tasks() - before - 1
                engine.submit(context.rest).result()
                return Barriers(threads, busy, _tasks() - before - 1, sleeps)


def _fewest_sleeps(context: LlamaContext) -> int:
    """For the bundled model, whose operations are so short that no thread waits long for another."""
    fewest, began = _sleeps(context), perf_counter()
    while fewest and perf_counter() - began < UNDISTURBED_S:
        fewest = min(fewest, _sleeps(context))
    return fewest


def _sleeps(context: LlamaContext) -> int:
    length = context.length(0)
    if length == CONTEXT:
        context.truncate(0, length := 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    context.decode([Rows(0, length, [5])])
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before


def _tasks() -> int:
    return len(list(TASKS.iterdir())) if TASKS.exists() else 0


def measure_isolated() -> Barriers:
    """Raises RunFailed."""
    return Barriers(**json.loads(run_isolated("inference.provisioning.barriers", timeout_s=TIMEOUT_S)))


if __name__ == "__main__":
    print(json.dumps(asdict(measure(default_threads()))))
