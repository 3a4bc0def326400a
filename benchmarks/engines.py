"""The cost of an engine in a process of its own, behind a Unix socket, compared with one in this process.

    python -m benchmarks.engines [--streams 1,8,32] [--rounds 3] [--tokens 48] [--json FILE]

Both compute the same answers of the bundled model in alternation, so a busy machine slows both. Measures: tokens per
second, median TTFT, and CPU time per token in this process and the engine's together, once for all threads and once for
the event loop threads only, which excludes the model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from benchmarks.served import pairs
from inference.bundled import CHAT_MODEL
from inference.config import EngineConfig
from inference.generation import Delta, Sampling
from inference.language_model import LanguageModel
from inference.model import ChatModel
from inference.prompt import ChatMessage
from inference.remote.remote_model import RemoteModel
from worker.engines.exchange import EngineTransport

RESIDENT, CONTEXT = 4, 512
READY = re.compile(rb"is ready .* at (\S+)")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Way:
    """One of the two sides."""

    name: str
    model: LanguageModel
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    tokens_per_s: float
    ttft_ms: float
    cpu_us: float  # per token, all threads
    way_us: float  # per token, event loop threads only


def cpu_s(process: int) -> tuple[float, float]:
    """CPU time of a process, and of its main thread, which runs the event loop."""
    return _spent(Path(f"/proc/{process}/stat")), _spent(Path(f"/proc/{process}/task/{process}/stat"))


def _spent(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def all_cpu_s(way: Way) -> tuple[float, float]:
    spent = [cpu_s(process) for process in way.processes]
    return sum(whole for whole, _ in spent), sum(main for _, main in spent)


async def measure(way: Way, streams: int, tokens: int, batches: int) -> Cost:
    """Measure `batches` consecutive batches of `streams` concurrent answers with `tokens` tokens each."""
    # The model must not end its turn, so that all answers have the same length.
    sampling = Sampling(max_tokens=tokens, temperature=0, logit_bias={0: -100.0, 2: -100.0})
    model, count = way.model, 0
    first_ms: list[float] = []
    prompts = [
        model.encode(model.render([ChatMessage("user", f"Tell me about the river number {number}.")]))
        for number in range(streams)
    ]

    async def stream(prompt: list[int]) -> None:
        nonlocal count
        began, first = time.perf_counter(), True

        def receive(delta: Delta) -> None:
            nonlocal count, first
            count += delta.tokens
            if first:
                first = False
                first_ms.append((time.perf_counter() - began) * 1e3)

        generation = model.generate(prompt, sampling)
        await generation.admitted()
        await generation.stream(receive)

    (whole, main), began = all_cpu_s(way), time.perf_counter()
    for _ in range(batches):
        await asyncio.gather(*map(stream, prompts))
    took = time.perf_counter() - began
    now_whole, now_main = all_cpu_s(way)
    spent, told = now_whole - whole, now_main - main
    return Cost(count / took, statistics.median(first_ms), spent / count * 1e6, told / count * 1e6)


@asynccontextmanager
async def inside(streams: int) -> AsyncIterator[Way]:
    config = EngineConfig(parallel=streams, resident=RESIDENT, context=CONTEXT, threads=1, queue_max=streams)
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    try:
        yield Way("in process", model, (os.getpid(),))
    finally:
        await model.close()


@asynccontextmanager
async def outside(streams: int) -> AsyncIterator[Way]:
    with tempfile.TemporaryDirectory(prefix="firsttoken-engines-") as home:
        options = {"streams": streams, "resident": RESIDENT, "context": CONTEXT, "threads": 1, "queue": streams}
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "worker", "engine", "--home", home, "--kv-disk-mb", "0", *flags]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            found = READY.search(await process.stdout.readline())
            assert found, "the engine did not start"
            model = await asyncio.to_thread(RemoteModel.load, CHAT_MODEL, [found[1].decode()], EngineTransport(), str)
            await model.start()
            yield Way("own process", model, (os.getpid(), process.pid))
            await model.close()
        finally:
            process.terminate()
            await process.wait()


async def report(streams: list[int], rounds: int, tokens: int) -> list[dict[str, object]]:
    print(f"{'streams':>7}  {'side':12}{'tokens/s':>9}{'TTFT ms':>9}{'CPU us/token':>14}{'loops us/token':>16}")
    table: list[dict[str, object]] = []
    for count in streams:
        batches = max(1, 16 // count)

        async def once(way: Way, count: int = count, batches: int = batches) -> Cost:
            return await measure(way, count, tokens, batches)

        async with inside(count) as here, outside(count) as there:
            measured = await pairs((here, there), once, rounds)
        for at, way in enumerate((here, there)):
            costs = [asdict(pair[at]) for pair in measured]
            row = {name: statistics.median(cost[name] for cost in costs) for name in costs[0]}
            table.append({"streams": count, "side": way.name, **row})
            numbers = f"{row['tokens_per_s']:9.0f}{row['ttft_ms']:9.1f}{row['cpu_us']:14.0f}{row['way_us']:16.0f}"
            print(f"{count:7}  {way.name:12}{numbers}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,8,32", help="concurrent answers (default 1,8,32)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each pair (default 3)")
    parser.add_argument("--tokens", type=int, default=48, help="tokens per answer (default 48)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    streams = [int(part) for part in options.streams.split(",")]
    table = uvloop.run(report(streams, options.rounds, options.tokens))
    if options.json:
        options.json.write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
