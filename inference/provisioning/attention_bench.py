"""Measures the cost of steps with each kind of attention; prints JSON.

`python -m inference.provisioning.attention_bench MODEL [--threads N] [--gpu-layers N] [--only KIND]`

Run in a subprocess, like `probe`. The kinds take turns, so that other load slows them alike, and the fastest step of
each counts. If that crashes, each kind is measured in a process of its own; one that crashes there gets no pace, and no
worker should use it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter

from inference.attention import ALL, Attention
from inference.backend import Rows
from inference.config import default_threads
from inference.llama import LlamaContext, LlamaModel
from inference.provisioning.isolated_process import RunFailed, run_isolated

STREAMS = (1, 8, 16)
PROMPTS, PROMPT_ROWS = 2, 60  # not a multiple of the kernels' tiles, as real questions are not either
HISTORY_TOKENS = 6 * PROMPT_ROWS  # in every slot: a system prompt and a turn or two
ROUNDS = 8  # enough to try out the number of threads as well
BUDGET_S = 10.0  # for filling the slots, and again for the steps: a large model gets less history and fewer rounds
TIMEOUT_S = 300.0
UNIFIED_GAIN = 1.1


@dataclass(frozen=True, slots=True)
class Pace:
    """Milliseconds of the fastest step, by kind of step."""

    attention: Attention
    steps_ms: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.attention!s:<29}" + "".join(f" | {name} {ms:.1f}" for name, ms in self.steps_ms.items())

    def slower_than(self, other: Pace) -> float:
        """How many times as long its steps take as the other's, as the geometric mean over all kinds of steps."""
        return geometric_mean(ms / other.steps_ms[name] for name, ms in self.steps_ms.items())


def fastest(paces: Sequence[Pace]) -> Pace:
    """A unified cache must be clearly faster: what it costs to park conversations is not in these steps."""
    return min(paces, key=lambda pace: pace.slower_than(paces[0]) * (UNIFIED_GAIN if pace.attention.unified else 1))


def measure(path: Path, *, threads: int, gpu_layers: int, kinds: Sequence[Attention] = ALL) -> list[Pace]:
    """Blocks for seconds, or for a minute with a large model. Raises InferenceError."""
    model = LlamaModel.load(path, gpu_layers=gpu_layers)
    made = {
        attention: LlamaContext(
            model,
            slots=max(STREAMS),
            context=HISTORY_TOKENS + PROMPT_ROWS,
            rows_max=PROMPTS * PROMPT_ROWS,
            threads=threads,
            attention=attention,
        )
        for attention in kinds
    }
    held = _fill(list(made.values()))
    prompts = [Rows(slot, held, range(PROMPT_ROWS)) for slot in range(PROMPTS)]
    # The largest first: if llama.cpp's compute buffers on a Vulkan device grow in a later step, drivers may crash.
    steps = {f"{PROMPTS} prompts of {PROMPT_ROWS}": prompts}
    steps |= {_streams(n): [Rows(slot, held, [slot]) for slot in range(n)] for n in reversed(STREAMS)}
    best = {attention: dict.fromkeys(steps, float("inf")) for attention in made}
    began = perf_counter()
    for _ in range(ROUNDS):
        for name, chunks in steps.items():
            for attention, context in made.items():
                best[attention][name] = min(best[attention][name], _step_ms(context, chunks))
        if perf_counter() - began > BUDGET_S:
            break
    for context in made.values():
        context.close()
    model.close()
    return [Pace(attention, steps_ms) for attention, steps_ms in best.items()]


def measure_isolated(path: Path, *, threads: int, gpu_layers: int) -> list[Pace]:
    """The same in a separate process, without the kinds that crash. Raises RunFailed if none can be measured."""
    module, given = "inference.provisioning.attention_bench", arguments(path, threads, gpu_layers)
    try:
        return read(run_isolated(module, *given, timeout_s=TIMEOUT_S))
    except RunFailed as failure:
        if not failure.crashed:
            raise
        paces: list[Pace] = []
        for kind in range(len(ALL)):
            with suppress(RunFailed):
                paces += read(run_isolated(module, *given, "--only", str(kind), timeout_s=TIMEOUT_S))
        if not paces:
            raise
        return paces


def arguments(path: Path, threads: int, gpu_layers: int) -> list[str]:
    return [str(path), "--threads", str(threads), "--gpu-layers", str(gpu_layers)]


def read(printed: str) -> list[Pace]:
    return [Pace(Attention(**each["attention"]), each["steps_ms"]) for each in json.loads(printed)]


def _fill(contexts: Sequence[LlamaContext]) -> int:
    """Give every slot a copy of the same history, in every context; returns its length in tokens."""
    began, held = perf_counter(), 0
    while held < HISTORY_TOKENS and perf_counter() - began < BUDGET_S:
        for context in contexts:
            context.decode([Rows(0, held, range(PROMPT_ROWS))])
        held += PROMPT_ROWS
    for context in contexts:
        state = context.save(0)
        for slot in range(1, context.slots):
            context.restore(slot, state)  # a fork would share the cells, and attention would read them only once
    return held


def _step_ms(context: LlamaContext, chunks: Sequence[Rows]) -> float:
    started = perf_counter()
    context.decode(chunks)
    took = perf_counter() - started
    for chunk in chunks:
        context.truncate(chunk.slot, chunk.position)
    return took * 1e3


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--gpu-layers", type=int, default=-1)
    parser.add_argument("--only", type=int, choices=range(len(ALL)), help="a kind by its place in ALL")
    options = parser.parse_args()
    kinds = ALL if options.only is None else [ALL[options.only]]
    threads = options.threads or default_threads()
    paces = measure(options.model, threads=threads, gpu_layers=options.gpu_layers, kinds=kinds)
    print(json.dumps([asdict(pace) for pace in paces]))
