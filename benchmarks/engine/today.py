"""Our worker beside llama-server on this machine, within ten minutes: `make bench`.

    python -m benchmarks.engine.today [--svg FILE] [--json FILE]

The same comparison as benchmarks.engine, with the smallest model and the rows that matter most: eight and sixteen
clients that come at once with a new system prompt, and returning ones. Then the batch curve up to sixteen streams, as a
picture. Prints what was compared and one Markdown table. The first call compiles llama-server, which takes minutes
more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path

from benchmarks.engine.curve import drawn, measured
from benchmarks.engine.measures import THROUGHPUT, TTFT, medians, ratios
from benchmarks.engine.rounds import Result, compare
from benchmarks.engine.servers import OURS, Setup, firsttoken, llama_server
from benchmarks.engine.synthetic import SHAPES, synthetic
from benchmarks.engine.target import session
from benchmarks.engine.workloads import cold, warm
from deploy.setup import ROOT, cache_folder
from inference.llama import build_features, computing, devices
from inference.provisioning.machine import cpu_name
from inference.weight_placement import Split
from worker.config import prepare_process

SHAPE = "0.1B"
STREAMS = 16
CONTEXT = 1024
WORKLOADS = [cold(8), cold(16), warm(1, 4), warm(8, 2), warm(16, 2)]
ROUNDS = 3
CURVE, CURVE_ROUNDS, CURVE_TOKENS = (1, 2, 4, 8, 16), 2, 48
PICTURE = ROOT / "docs" / "images" / "batch-curve.svg"


def conditions(setup: Setup) -> str:
    """What was compared, in a line."""
    features = " ".join(name for name, on in build_features().items() if on == "1")
    return f"{cpu_name()}, {setup.threads} threads, {SHAPE} synthetic model in Q8_0, {date.today()}; build: {features}"


def table(results: Sequence[Result]) -> Iterator[str]:
    """Lines of Markdown: medians of the rounds, and the medians of the ratios of each round."""
    yield "| workload | TTFT p50, ms: llama-server, ours | ratio | tokens/s: llama-server, ours | ratio |"
    yield "|---|---|---|---|---|"
    for result in results:
        theirs, ours, by = medians(result.theirs), medians(result.ours), ratios(result.ours, result.theirs)
        ttft, rate = (f"{theirs[name]:.0f}, {ours[name]:.0f} | {by[name]:.2f}" for name in (TTFT, THROUGHPUT))
        yield f"| {result.workload} | {ttft} | {rate} |"


async def measure(options: argparse.Namespace) -> None:
    setup = Setup(synthetic(SHAPES[SHAPE], cache_folder() / "models"), STREAMS, CONTEXT)
    start = partial(llama_server, setup, slots=STREAMS)
    async with session() as http, AsyncExitStack() as running:
        ours = await running.enter_async_context(firsttoken(setup, http))
        peers = [await running.enter_async_context(start(http, flash=flash)) for flash in (False, True)]
        for side in (ours, *peers):
            await warm(8, 1).run(side, "nothing is measured yet")
        results = [await compare(SHAPE, workload, ours, peers, ROUNDS) for workload in WORKLOADS]
        best = next(peer for peer in peers if peer.name == results[-1].peer)
        points = await measured([(OURS, ours), ("llama-server", best)], CURVE, CURVE_ROUNDS, CURVE_TOKENS)
        device = next((gpu.description for gpu in computing(devices(), Split())), cpu_name())
    print(conditions(setup), *table(results), sep="\n")
    options.svg.write_text(drawn(points, f"{SHAPE}, {device}, {date.today()}"), "utf-8")
    if options.json:
        whole = {
            "conditions": conditions(setup),
            "results": list(map(asdict, results)),
            "points": list(map(asdict, points)),
        }
        options.json.write_text(json.dumps(whole, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, default=PICTURE, help="the picture (default docs/images/batch-curve.svg)")
    parser.add_argument("--json", type=Path, help="also write every round to this file")
    prepare_process()
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
