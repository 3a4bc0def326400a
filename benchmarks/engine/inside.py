"""Measurements inside our own engine: the share of Python, and the cost of parking and resuming idle conversations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter

from benchmarks.engine.servers import Setup, bare
from benchmarks.engine.workloads import Workload, returning
from inference.backend import Rows
from inference.config import default_threads
from inference.llama import LlamaContext, LlamaModel

RESUMED_TOKENS = 1024
BITE = 256
REPEATS = 5


async def python_share(setup: Setup, workload: Workload) -> float:
    """Percentage of wall-clock time, under constant load, that the engine spends outside llama.cpp."""
    async with bare(setup) as engine:
        await workload.run(engine, "first")  # the engine learns the cost of its steps
        before, started = engine.model.stats()["decode_seconds_total"], perf_counter()
        await workload.run(engine, "second")
        wall, after = perf_counter() - started, engine.model.stats()["decode_seconds_total"]
    return 100 * (1 - (float(after) - float(before)) / wall)


async def idle_bytes(setup: Setup, conversations: int, tokens: int) -> tuple[float, float]:
    """Bytes of host memory per parked conversation, and per token of it."""
    async with bare(setup) as engine:
        await returning(conversations, tokens, 8).run(engine, "parked")
        stats = engine.model.stats()
    each = float(stats["parked_bytes"]) / float(stats["parked"])
    return each, each / tokens


async def resume_ratio(model: Path) -> float:
    """The time to restore a parked conversation, relative to prefilling its prompt again; the fastest of some tries."""
    return await asyncio.to_thread(_resume_ratio, model)


def _resume_ratio(path: Path) -> float:
    model = LlamaModel.load(path, gpu_layers=-1)
    context = LlamaContext(model, slots=1, context=2 * RESUMED_TOKENS, rows_max=BITE, threads=default_threads())
    computing, resuming = [], []
    for _ in range(REPEATS):
        context.truncate(0, 0)
        started = perf_counter()
        for position in range(0, RESUMED_TOKENS, BITE):
            context.decode([Rows(0, position, range(position, position + BITE))])
        computing.append(perf_counter() - started)
        state = context.save(0)
        started = perf_counter()
        context.restore(0, state)
        resuming.append(perf_counter() - started)
    context.close()
    model.close()
    return min(resuming) / min(computing)
