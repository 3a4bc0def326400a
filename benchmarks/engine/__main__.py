"""The engine compared with llama-server, and with itself without drafts.

    python -m benchmarks.engine [--rounds 3] [--only NAME ...] [--json FILE]

Both sides use the same libraries, model file and threads, alternate within every round, and get the same requests. The
whole worker is measured, through POST /v1/chat/completions. llama-server counts with flash attention on or off,
whichever is better, workload by workload; llama-cpp-python's own server is included for orientation. Numbers are
medians over the rounds; a ratio is ours to theirs in the same round. Prints a Markdown table. Needs the development
dependencies; the first call compiles llama-server.

For an open loop, in which sessions arrive whether or not the server keeps up, see benchmarks.engine.open_loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from benchmarks.engine.drafts import BUNDLED, TASKS, drafted, pair, quoting
from benchmarks.engine.rounds import Result, compare
from benchmarks.engine.servers import KEPT_SLOTS, SPECULATION, Setup, firsttoken, llama_server
from benchmarks.engine.synthetic import SHAPES, synthetic
from benchmarks.engine.target import Endpoint, session
from benchmarks.engine.workloads import Workload, cold, interrupted, page_questions, returning, warm
from deploy.setup import cache_folder
from deploy.weights import fetch
from inference.provisioning.catalogue import SMOL_CHAT
from worker.cli.download import make
from worker.config import prepare_process

STREAMS = 16
CONTEXT = 6144  # holds the long prompt, and the chats that run beside it
RETURNING_CONTEXT = 1024
REAL_CONTEXT = 2048
ALL = [cold(8), cold(16), warm(16, 2), warm(8, 2), warm(1, 4), interrupted()]
RETURNING = [returning(64, 300, 20), returning(64, 800, 20)]
DRAFTS = [drafted(1, 32), drafted(4, 16), drafted(8, 12), drafted(16, 8)]
DRAFT_ROUNDS = 3  # rounds per round of the other workloads: these are short, and differences are small
REAL = [page_questions()]
REAL_ROUNDS = 3  # rounds per round of the other workloads: one is two answers
LOOKUP = [quoting(task, clients, 2) for clients in (1, 4, 8) for task in TASKS]
LOOKUP_STREAMS = 8
HEAD = "| model | workload | other side | measure | theirs | ours | ratio | goal |\n|---|---|---|---|---|---|---|---|"


@asynccontextmanager
async def sides(setup: Setup, slots: int) -> AsyncIterator[tuple[Endpoint, list[Endpoint], Endpoint]]:
    """Ours; llama-server with flash attention off and on; and one that caches no conversations beyond its slots."""
    start = partial(llama_server, setup, slots=slots)
    async with session() as http, AsyncExitStack() as running:
        ours = await running.enter_async_context(firsttoken(setup, http))
        off = await running.enter_async_context(start(http, flash=False))
        on = await running.enter_async_context(start(http, flash=True))
        forgetful = await running.enter_async_context(start(http, flash=False, host_cache=False))
        for side in (ours, off, on, forgetful):
            await warm(8, 1).run(side, "nothing is measured yet")
        yield ours, [off, on], forgetful


async def against(setup: Setup, slots: int, name: str, workloads: Sequence[Workload], rounds: int) -> list[Result]:
    results: list[Result] = []
    if not workloads:
        return results
    async with sides(setup, slots) as (ours, peers, forgetful):
        for workload in workloads:
            results.append(_shown(await compare(name, workload, ours, peers, rounds)))
            if workload in RETURNING:  # llama-server has a host cache as well: compare without it
                results.append(_shown(await compare(name, workload, ours, [forgetful], rounds, after=rounds)))
    return results


async def with_drafts(setup: Setup, name: str, workloads: Sequence[Workload], rounds: int) -> list[Result]:
    if not workloads:
        return []
    async with pair(setup) as (ours, without):
        for side in (ours, without):
            await drafted(1, 8).run(side, "nothing is measured yet")
        rounds *= DRAFT_ROUNDS
        return [_shown(await compare(name, workload, ours, [without], rounds)) for workload in workloads]


async def beside_lookup(setup: Setup, name: str, workloads: Sequence[Workload], rounds: int) -> list[Result]:
    """Compare our prompt lookup with our worker without it, and with llama-server's drafts that need no model."""
    results: list[Result] = []
    if not workloads:
        return results
    async with session() as http, AsyncExitStack() as running:
        ours = await running.enter_async_context(firsttoken(setup, http))
        without = await running.enter_async_context(firsttoken(replace(setup, lookup=False), http))
        start = partial(llama_server, setup, http, slots=setup.streams, flash=False)
        peers = [await running.enter_async_context(start(speculation=kind)) for kind in SPECULATION]
        for side in (ours, without, *peers):
            await drafted(1, 2).run(side, "nothing is measured yet")
        for workload in workloads:
            results.append(_shown(await compare(name, workload, ours, [replace(without, name="no drafts")], rounds)))
            results.append(_shown(await compare(name, workload, ours, peers, rounds, after=rounds)))
    return results


async def measure(options: argparse.Namespace) -> None:
    models = {name: synthetic(SHAPES[name], cache_folder() / "models") for name in options.models}
    small, *larger = models
    only = tuple(options.only)

    def chosen(workloads: Sequence[Workload]) -> list[Workload]:
        return [workload for workload in workloads if workload.name.startswith(only)]

    print(HEAD, flush=True)
    results = await with_drafts(BUNDLED, "bundled", chosen(DRAFTS), options.rounds)
    returning_setup = Setup(models[small], 1, RETURNING_CONTEXT)
    results += await against(returning_setup, 1 + KEPT_SLOTS, small, chosen(RETURNING), options.rounds)
    setup = Setup(models[small], STREAMS, CONTEXT)
    if lookup := chosen(LOOKUP):
        base = await asyncio.to_thread(fetch)
        made = await make(SMOL_CHAT, cache_folder() / "models", lambda *_: None, source=str(base))
        for name, path in (("SmolLM2 135M", base), (SMOL_CHAT.name, made)):
            quotes = Setup(path, LOOKUP_STREAMS, REAL_CONTEXT, lookup=True)
            results += await beside_lookup(quotes, name, lookup, options.rounds)
    results += await against(setup, STREAMS, small, chosen(ALL), options.rounds)
    for name in larger:
        results += await against(Setup(models[name], STREAMS, CONTEXT), STREAMS, name, chosen(ALL), options.rounds)
    if real := chosen(REAL):
        setup = Setup(await asyncio.to_thread(fetch), 1, REAL_CONTEXT)
        results += await against(setup, 1 + KEPT_SLOTS, "SmolLM2 135M", real, REAL_ROUNDS * options.rounds)
    if options.json:
        options.json.write_text(json.dumps(list(map(asdict, results)), indent=2))


def _shown(result: Result) -> Result:
    print(*result.lines(), sep="\n", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every workload (default 3)")
    parser.add_argument("--only", nargs="+", default=[""], help="prefixes of workload names")
    parser.add_argument(
        "--models", nargs="+", default=list(SHAPES), choices=SHAPES, help="synthetic models, small first"
    )
    parser.add_argument("--json", type=Path, help="also write every round to this file")
    prepare_process()
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
