"""How many sessions per second are served on time, by us and by llama-server.

    python -m benchmarks.engine.open_loop [--models 0.1B] [--rates 0.5 1 2] [--json FILE]

Open loop: sessions arrive as a Poisson process, whether or not the server keeps up. A session has one of three system
prompts and up to four turns of lognormal lengths, with think times between them that start when the answer has ended. A
turn is on time if its TTFT, measured from when it was due, and its TPOT meet their targets. Late, refused and failed
turns are not on time; neither are the remaining turns of a session that ended early.

Both sides replay the same traces in alternation. Prints a Markdown table of medians over the rounds, and progress on
stderr. Needs the development dependencies; the first call compiles llama-server. For a first look:

    python -m benchmarks.engine.open_loop --models 0.1B --rates 0.6 1.2 --rounds 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.engine.measures import THROUGHPUT
from benchmarks.engine.open_loop.goodput import Goodput, Targets, judge
from benchmarks.engine.open_loop.report import Row, head
from benchmarks.engine.open_loop.sessions import CONTEXT, SYSTEM_TOKENS, WINDOW_S_MAX, WINDOW_S_MIN, Plan, Texts, replay
from benchmarks.engine.prompts import Message
from benchmarks.engine.servers import Setup, firsttoken, llama_server
from benchmarks.engine.synthetic import SHAPES, synthetic
from benchmarks.engine.target import Endpoint, Listener, Refused, session
from benchmarks.engine.workloads import warm
from deploy.setup import cache_folder
from worker.config import prepare_process

STREAMS = 16
QUIET_TRIES, QUIET_PAUSE_S = 20, 0.5  # a server notices a closed connection within a step or two


@asynccontextmanager
async def sides(setup: Setup, plan: Plan) -> AsyncIterator[tuple[Endpoint, Endpoint]]:
    """Ours, and llama-server with or without flash attention, whichever has more throughput with eight clients. Ours
    knows the targets, as operators set them; llama-server has no such option."""
    async with session() as http:
        paces = {}
        for flash in (False, True):
            async with llama_server(setup, http, slots=setup.streams, flash=flash) as peer:
                await warm(8, 1).run(peer, "nothing is measured yet")
                paces[flash] = (await warm(8, 2).run(peer, "which is faster"))[THROUGHPUT]
        flash = max(paces, key=lambda flash: paces[flash])
        async with (
            firsttoken(setup, http, "--targets", f"embedded={plan.targets}") as ours,
            llama_server(setup, http, slots=setup.streams, flash=flash) as theirs,
        ):
            for side in (ours, theirs):
                await warm(8, 2).run(side, "nothing is measured yet")
                for number in range(len(SYSTEM_TOKENS)):
                    await quiet(side, [Texts(plan.seed, "").system(number)])
            yield ours, theirs


async def play(target: Endpoint, rate: float, number: int, plan: Plan) -> Goodput:
    """Run one round at one rate."""
    texts = Texts(systems=plan.seed, questions=f"{plan.seed}/{number}/{rate}")
    outcomes = await replay(target, plan.trace(rate, number), texts, cut_off_s=plan.cut_off_s)
    judged = judge(outcomes, plan.targets, plan.window_s(rate))
    await quiet(target)
    told = f"{judged.in_time} of {judged.turns} turns on time ({judged.share:.0%}), {judged.late} late"
    lost = f"{judged.refused} refused, {judged.failed} failed, {judged.cut_off} cut off, {judged.unasked} unasked"
    pace = f"TTFT p50/p95 {_ms(judged.ttft_p50_ms)}/{_ms(judged.ttft_p95_ms)} ms"
    pace += f", TPOT {_ms(judged.tpot_p50_ms)}/{_ms(judged.tpot_p95_ms)} ms"
    print(f"{rate:.3g} sessions/s | {number} | {target.name} | {told}, {lost}; {pace}", file=sys.stderr, flush=True)
    return judged


async def quiet(target: Endpoint, said: Sequence[Message] = ()) -> None:
    """Wait until the target is idle: send a short question and wait for its answer, by which time cancelled requests
    have ended. Raises Refused if the target stays too busy."""
    for left in reversed(range(QUIET_TRIES)):
        try:
            await Listener().listen(target, [*said, Message("user", "Hello.")], 1)
            return
        except Refused:
            if not left:
                raise
            await asyncio.sleep(QUIET_PAUSE_S)


async def at(rate: float, ours: Endpoint, theirs: Endpoint, plan: Plan) -> Row:
    row = Row(rate)
    for number in range(plan.rounds):
        row.ours.append(await play(ours, rate, number, plan))
        row.theirs.append(await play(theirs, rate, number, plan))
    return row


async def measure(options: argparse.Namespace) -> None:
    targets = Targets(options.ttft_ms / 1e3, options.tpot_ms / 1e3)
    plan = Plan(targets, options.rounds, options.sessions, options.seed)
    report: dict[str, Any] = {"options": {**vars(options), "json": str(options.json)}, "models": {}}
    print(head(), flush=True)
    for name in options.models:
        setup = Setup(synthetic(SHAPES[name], cache_folder() / "models"), options.streams, CONTEXT)
        async with sides(setup, plan) as (ours, theirs):
            rows = [await at(rate, ours, theirs, plan) for rate in options.rates]
        print(*(row.line(name) for row in rows), sep="\n", flush=True)
        report["models"][name] = {
            "peer": theirs.name,
            "rates": [
                {
                    "sessions_per_s": row.rate,
                    "window_s": plan.window_s(row.rate),
                    "ours": [run.numbers() for run in row.ours],
                    "theirs": [run.numbers() for run in row.theirs],
                }
                for row in rows
            ],
        }
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))


def _ms(value: float | None) -> str:
    return "∞" if value is None else f"{value:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=SHAPES, help="synthetic models")
    parser.add_argument("--ttft-ms", type=float, default=500, help="TTFT target (default 500)")
    parser.add_argument("--tpot-ms", type=float, default=50, help="TPOT target (default 50)")
    parser.add_argument("--rates", nargs="+", type=float, default=[0.3, 0.6, 1.2], help="sessions per second")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per rate (default 3)")
    parser.add_argument(
        "--sessions",
        type=int,
        default=24,
        help=f"sessions judged per round, within a window of {WINDOW_S_MIN:.0f} to {WINDOW_S_MAX:.0f} s (default 24)",
    )
    parser.add_argument("--streams", type=int, default=STREAMS, help="concurrent answers on each side (default 16)")
    parser.add_argument("--seed", default="open loop", help="seed of the traces")
    parser.add_argument("--json", type=Path, help="also write every round to this file")
    options = parser.parse_args()
    prepare_process()
    asyncio.run(measure(options))


if __name__ == "__main__":
    main()
