"""What a GPU gives: everything that depends on the device, within ten minutes, as one table and one JSON file.

    python -m benchmarks.gpu [--json gpu.json] [--shape 7B] [--minutes 10] [--only PART ...]

Needs a build of llama.cpp for a GPU (`make setup` makes one where there is a GPU and its compiler) and a device. Each
part runs in a process of its own, for at most its share of the time: a driver that crashes, or a device that is too
slow, costs the rest of that part. On a software GPU (Mesa's llvmpipe) the numbers say nothing about speed: see
docs/hardware.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeAlias

from benchmarks.engine import prompts
from benchmarks.engine.drafts import BUNDLED, drafted, pair
from benchmarks.engine.measures import CHARACTERS, THROUGHPUT, TPOT, TTFT, medians, ratios
from benchmarks.engine.rounds import compare
from benchmarks.engine.servers import Setup, bare, firsttoken, llama_server
from benchmarks.engine.synthetic import ALL_SHAPES, Shape, synthetic
from benchmarks.engine.target import Listener, session
from benchmarks.engine.workloads import Workload, cold, warm
from deploy.builds import Result
from deploy.setup import ROOT, cache_folder
from inference.llama import Device, backends, computing, devices
from inference.weight_placement import Split
from worker.config import prepare_process

SOFTWARE = "llvmpipe"  # the name by which Mesa's software GPU describes itself
STREAMS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 1024  # the prompt of a warm client, and its answer
LENGTHS = (64, 256, 1024, 4096)  # of prompts, in tokens
LONG_CONTEXT = 6144
REPEATS = 3
ANSWER_TOKENS = 32
PROMPTS = "the same"  # of the batch curve: they are cached, as it is about answers
SHARES = (1, 8, 32)  # streams at which Python's share of a step is measured
DRAFTED = (1, 4, 8)
DRAFT_TURNS = 16  # of a client: a step of so small a model takes half a millisecond, and the first ones try drafts out
BESIDE = [warm(1, 4), warm(8, 2), warm(32, 2), cold(32)]
BESIDE_STREAMS, BESIDE_ROUNDS = 32, 2
MINUTES = 10
LARGE = 24 << 30  # bytes of a device on which the largest model and the contexts of all streams have room


@dataclass(frozen=True, slots=True)
class Row:
    part: str
    case: str
    value: str


Rows: TypeAlias = AsyncIterator[tuple[str, str]]  # case, value


def of_streams(count: int) -> str:
    return f"{count} stream{'s' * (count > 1)}"


async def curve(path: Path) -> Rows:
    async with bare(Setup(path, max(STREAMS), CONTEXT)) as engine:
        await warm(1, 1, ANSWER_TOKENS).run(engine, PROMPTS)
        for streams in STREAMS:
            numbers = await warm(streams, 1, ANSWER_TOKENS).run(engine, PROMPTS)
            yield of_streams(streams), f"{numbers[THROUGHPUT]:.1f} tokens/s, {numbers[TPOT]:.2f} ms a token"


async def first_tokens(path: Path) -> Rows:
    async with bare(Setup(path, 1, LONG_CONTEXT)) as engine:
        await warm(1, 1, ANSWER_TOKENS).run(engine, "nothing is measured yet")
        for tokens in LENGTHS:
            times = [
                (await Listener().listen(engine, prompts.alone(f"{tokens}/{number}", tokens), 1)).ttft_s
                for number in range(REPEATS)
            ]
            yield f"prompt of {tokens} tokens", f"{median(times) * 1e3:.1f} ms"


async def drafts(_: Path) -> Rows:
    """The bundled pair, whose answers have meaning: noise accepts no draft."""
    async with pair(BUNDLED) as (ours, without):
        for side in (ours, without):
            await drafted(1, 2).run(side, "nothing is measured yet")
        for clients in DRAFTED:
            rates = [(await drafted(clients, DRAFT_TURNS).run(side, ""))[CHARACTERS] for side in (ours, without)]
            yield of_streams(clients), f"{rates[0] / rates[1]:.2f} of the speed without"


async def python_share(setup: Setup, workload: Workload) -> float:
    """Percentage of wall-clock time, under constant load, that the engine spends outside llama.cpp."""
    async with bare(setup) as engine:
        await workload.run(engine, "first")  # the engine learns the cost of its steps
        before, started = engine.model.stats()["decode_seconds_total"], perf_counter()
        await workload.run(engine, "second")
        wall, after = perf_counter() - started, engine.model.stats()["decode_seconds_total"]
    return 100 * (1 - (float(after) - float(before)) / wall)


async def python(path: Path) -> Rows:
    for streams in SHARES:
        share = await python_share(Setup(path, streams, CONTEXT), warm(streams, 1, ANSWER_TOKENS))
        yield of_streams(streams), f"{share:.2f} % of a step"


async def beside(path: Path) -> Rows:
    """The whole worker and llama-server, over HTTP. llama-server is compiled at the first call, which takes minutes."""
    setup = Setup(path, BESIDE_STREAMS, CONTEXT)
    async with (
        session() as http,
        firsttoken(setup, http) as ours,
        llama_server(setup, http, slots=BESIDE_STREAMS, flash=True) as theirs,
    ):
        for side in (ours, theirs):
            await warm(8, 1).run(side, "nothing is measured yet")
        for workload in BESIDE:
            result = await compare(path.stem, workload, ours, [theirs], BESIDE_ROUNDS)
            our, their, by = medians(result.ours), medians(result.theirs), ratios(result.ours, result.theirs)
            told = [
                f"{name} {their[name]:.0f} and {our[name]:.0f} (ratio {by[name]:.2f})" for name in (TTFT, THROUGHPUT)
            ]
            yield workload.name, "; ".join(told)


async def contract(_: Path) -> Rows:
    """What a model promises, asked of one in its own process: a wrong kernel shows here."""
    what = ["-q", "-p", "no:cacheprovider", "-k", "inside", "tests/worker/engines/test_contract.py"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", *what, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = (await process.communicate())[0]
    yield "tests of a model's promises", Result.of(output.decode(errors="replace"), process.returncode or 0).summary


# Each part, and its share of the time.
PARTS: dict[str, tuple[Callable[[Path], Rows], float]] = {
    "batch curve": (curve, 0.25),
    "TTFT": (first_tokens, 0.1),
    "beside llama-server": (beside, 0.25),
    "drafts": (drafts, 0.1),
    "Python": (python, 0.1),
    "contract": (contract, 0.2),
}


def missing() -> str | None:
    """What this machine or build lacks, in a line; None if there is a GPU to compute on."""
    if computing(devices(), Split()):
        return None
    built = [name for name in backends() if name != "CPU"]
    if built:
        return f"this build of llama.cpp is for {' and '.join(built)}, which finds no device: is its driver installed?"
    return "this build of llama.cpp is for the CPU alone: FIRSTTOKEN_BACKEND=cuda (or vulkan) make setup builds another"


def fitting(device: Device) -> str:
    """The name of the largest model that this device computes at a pace worth measuring."""
    if SOFTWARE in device.description:
        return "0.02B"
    return "7B" if device.memory_bytes > LARGE else "1B"


def rows_of(part: str, command: Sequence[str], limit_s: float) -> Iterator[Row]:
    """Run a part that prints its rows, one JSON list a line. The last row tells why there are no more, if there should
    be."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            output, why = process.communicate(timeout=limit_s)[0], ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with what it started
            output, why = process.communicate()[0], f"stopped after {limit_s:g} s"
    for line in output.splitlines():
        case, value = json.loads(line)
        yield Row(part, case, value)
    if why or process.returncode:
        died = f"ended by {signal.Signals(-process.returncode).name}" if process.returncode < 0 else "failed"
        yield Row(part, "the rest", why or died)


def table(rows: Sequence[Row]) -> str:
    return "\n".join(
        ["| part | case | result |", "|---|---|---|", *(f"| {r.part} | {r.case} | {r.value} |" for r in rows)]
    )


async def _print_rows(part: str, path: Path) -> None:
    async for row in PARTS[part][0](path):
        print(json.dumps(row), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="where the rows go (default gpu.json)")
    parser.add_argument(
        "--shape", choices=ALL_SHAPES, help="size of the synthetic model (default: by the device's memory)"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"for all parts together (default {MINUTES})")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)  # how it calls itself
    options = parser.parse_args()
    prepare_process()
    if (lacking := missing()) is not None:
        print(f"gpu: {lacking}", file=sys.stderr)
        return 1
    device = computing(devices(), Split())[0]
    shape: Shape = ALL_SHAPES[options.shape or fitting(device)]
    path = synthetic(shape, cache_folder() / "models")
    if options.part:
        asyncio.run(_print_rows(options.part, path))
        return 0
    itself = [sys.executable, "-m", "benchmarks.gpu", "--shape", shape.name, "--part"]
    rows: list[Row] = []
    print(f"{device.description}, {device.backend}, {shape.name}, {date.today()}", flush=True)
    for part in options.only:
        for row in rows_of(part, [*itself, part], PARTS[part][1] * options.minutes * 60):
            print(f"{row.part} | {row.case} | {row.value}", file=sys.stderr, flush=True)
            rows.append(row)
    print(table(rows))
    told = {"device": device.description, "backend": device.backend, "model": shape.name, "date": str(date.today())}
    options.json.write_text(json.dumps({**told, "rows": [asdict(row) for row in rows]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
