"""What a token costs the engine's thread outside the model: planning, sampling, detokenization and delivery.

    python -m benchmarks.engine_thread [--rows 1,8,64] [--vocabulary 8000,32000,128000] [--steps 60] [--json FILE]

The engine is the real one; its device returns prepared logits at once. The measure is the CPU time of the engine's
thread from the end of one decode to the start of the next, so a busy machine does not distort it. Logits are normally
distributed with a standard deviation of 3: flatter than those of a trained model, so that no sampling method has an
easy case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import thread_time_ns

import numpy as np
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.config import EngineConfig
from inference.engine.engine import Engine
from inference.generation import Sampling
from inference.llama.context import Batch
from tests.scripted import ScriptedBackend

CONTEXT = 8192
PROMPT_TOKENS = 16
WARM_UP_STEPS = 20
DEVIATION = 3.0
SAMPLINGS = {
    "greedy": Sampling(temperature=0, max_tokens=CONTEXT),
    "temperature 1": Sampling(temperature=1, max_tokens=CONTEXT, seed=1),
    "temperature 0.7, top_p 0.9": Sampling(temperature=0.7, top_p=0.9, max_tokens=CONTEXT, seed=1),
}


class IdleDevice(ScriptedBackend):
    """A device that computes nothing. `own_ns`: the engine thread's CPU time before each step in which every stream
    gets a token. `done` is set after `steps` of them."""

    def __init__(self, streams: int, config: EngineConfig, logits: NDArray[np.float32], steps: int) -> None:
        super().__init__(config.slots, CONTEXT, config.rows_max, logits.shape[1])
        self.own_ns: list[int] = []
        self.done = asyncio.Event()
        self._steps = steps
        self._rows, self._prepared = streams, logits
        self._batch = Batch(self.rows_max)
        self._loop = asyncio.get_running_loop()
        self._delivered = threading.Event()
        self._left_ns = 0

    def decode(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        outputs = self._batch.fill(chunks, self.slots, self.context)
        if self._left_ns and outputs == len(chunks) == self._rows:
            self.own_ns.append(thread_time_ns() - self._left_ns)
            if len(self.own_ns) == self._steps:
                self._loop.call_soon_threadsafe(self.done.set)
        self._wait_for_delivery()
        self._left_ns = thread_time_ns()
        return self._prepared[:outputs]

    def _wait_for_delivery(self) -> None:
        """Wait for the event loop: a device that takes no time must not run ahead of it."""
        self._delivered.clear()
        self._loop.call_soon_threadsafe(self._delivered.set)
        self._delivered.wait()

    def fork(self, source: int, target: int, length: int, checkpoint: NDArray[np.uint8] | None = None) -> None: ...

    def truncate(self, slot: int, length: int, checkpoint: NDArray[np.uint8] | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of the engine's thread: the mean over all steps, and the median step."""

    us_per_token: float
    step_ms: float


async def measure(rows: int, logits: NDArray[np.float32], sampling: Sampling, steps: int) -> Cost:
    """Stream `rows` answers for `steps` steps. `logits` have shape (at least rows, vocabulary)."""
    config = EngineConfig(parallel=rows, resident=8, parked_bytes_max=0)
    device = IdleDevice(rows, config, logits, WARM_UP_STEPS + steps)
    engine = Engine(device, [b"word "] * logits.shape[1], frozenset(), config)
    engine.start()
    handles = [engine.submit([row, *range(PROMPT_TOKENS)], sampling) for row in range(rows)]
    await device.done.wait()
    own_ns = device.own_ns[WARM_UP_STEPS : WARM_UP_STEPS + steps]
    for handle in handles:
        handle.cancel()
    await asyncio.to_thread(engine.close)
    return Cost(statistics.fmean(own_ns) / rows / 1e3, statistics.median(own_ns) / 1e6)


async def report(rows: Sequence[int], vocabularies: Sequence[int], steps: int) -> list[dict[str, str | float]]:
    print(f"{'sampling':28}{'vocabulary':>11}{'rows':>6}{'us/token':>10}{'ms/step':>10}")
    table: list[dict[str, str | float]] = []
    for vocabulary in vocabularies:
        logits = np.random.default_rng(0).normal(0, DEVIATION, (max(rows), vocabulary)).astype(np.float32)
        for name, sampling in SAMPLINGS.items():
            for count in rows:
                cost = await measure(count, logits, sampling, steps)
                print(f"{name:28}{vocabulary:11}{count:6}{cost.us_per_token:10.1f}{cost.step_ms:10.3f}")
                table.append(
                    {
                        "sampling": name,
                        "vocabulary": vocabulary,
                        "rows": count,
                        "us_per_token": cost.us_per_token,
                        "step_ms": cost.step_ms,
                    }
                )
    return table


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=_numbers, default=[1, 8, 64], help="concurrent streams (default 1,8,64)")
    parser.add_argument("--vocabulary", type=_numbers, default=[8_000, 32_000, 128_000], help="vocabulary sizes")
    parser.add_argument("--steps", type=int, default=60, help="measured steps per case (default 60)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    table = asyncio.run(report(options.rows, options.vocabulary, options.steps))
    if options.json:
        options.json.write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
