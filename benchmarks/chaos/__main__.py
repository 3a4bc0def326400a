"""Faults under load: lost, stuck and duplicated answers, and the recovery time.

    python -m benchmarks.chaos                               # 140 injections, some minutes
    python -m benchmarks.chaos --injections 1000             # the long run
    python -m benchmarks.chaos --faults "worker killed" --seed 7

A real worker with its embedded Postgres and the bundled model serves clients that use idempotency keys, reconnect after
lost connections and record what they receive. In addition to the faults in the table, some clients vanish by
themselves. Some faults are injected before the system has recovered from the previous one. Exits with 1 if a promise is
broken. Promises are checked by counts, which mean the same on any machine; the times are only reported.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.chaos.traffic import START_S_MAX, Books, Client, Verdict, audit
from benchmarks.chaos.world import FAULTS, VANISH, World

CALM_S = (0.2, 1.5)
OVERLAPPING_SHARE = 0.5
OVERLAPPING_MAX = 6  # consecutive faults without a recovery in between


async def drill(
    faults: Sequence[str],
    injections: int,
    clients: int,
    seed: int,
    folder: Path,
    *,
    overlapping: float = OVERLAPPING_SHARE,
    calm_s: tuple[float, float] = CALM_S,
) -> dict[str, Any]:
    """Inject faults one after the other, cycling through the kinds at random moments, then check the outcome.

    `overlapping`: the share of faults after which the next one follows without waiting for the recovery. `calm_s`: the
    shortest and the longest time before each.
    """
    dice, books, until = random.Random(seed), Books(), asyncio.Event()
    world = World(folder, "--drain-s", "1", "--docs", "")
    recovered_ms: dict[str, list[float]] = {name: [] for name in faults}
    in_a_row, order = 0, _order(faults, injections, dice)
    ready = await world.start()
    try:
        traffic = [
            asyncio.create_task(Client(world.url, ready["api_key"], books, random.Random(dice.random())).run(until))
            for _ in range(clients)
        ]
        for number, name in enumerate(order, 1):
            await asyncio.sleep(dice.uniform(*calm_s))
            began = monotonic()
            await FAULTS[name](world, dice)
            books.last_fault = monotonic()
            if number < injections and in_a_row < OVERLAPPING_MAX and dice.random() < overlapping:
                in_a_row += 1
            else:
                in_a_row = 0
                recovered_ms[name].append(await _recovery_ms(books, began))
            print(f"\r{number} of {injections}  {name:<28}", end="", file=sys.stderr, flush=True)
        until.set()
        await asyncio.gather(*traffic)
        log = await asyncio.to_thread(world.log.read_text, errors="replace")
        verdict = await audit(world.url, ready["api_key"], books, log)
    finally:
        await world.stop()
    return _report(Counter(order), recovered_ms, books, verdict, world.starts)


def _order(faults: Sequence[str], injections: int, dice: random.Random) -> list[str]:
    """The faults in random order, each equally often: any fault may follow any other."""
    rounds = [dice.sample(faults, len(faults)) for _ in range(-(-injections // len(faults)))]
    return [name for each in rounds for name in each][:injections]


async def _recovery_ms(books: Books, since: float) -> float:
    """Milliseconds until a request that was sent after the fault is answered."""
    books.since = monotonic()
    books.answered.clear()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_S_MAX):
            await books.answered.wait()
    return (monotonic() - since) * 1e3


def _report(
    injections: Counter[str], recovered_ms: dict[str, list[float]], books: Books, verdict: Verdict, starts: int
) -> dict[str, Any]:
    rows = {name: {"injections": injections[name], **_recovery(times)} for name, times in recovered_ms.items()}
    return {
        "faults": rows | {VANISH: {"injections": books.vanished}},
        "requests": len(books.requests),
        "attempts": sum(told.attempts for told in books.requests),
        "answered": sum(told.response is not None for told in books.requests),
        "completed": sum((told.response or {}).get("status") in ("completed", "incomplete") for told in books.requests),
        "forgotten": books.forgotten,
        "worker_starts": starts,
        "statuses": dict(sorted(books.statuses.items())),
        "broken": verdict.broken,
        "examples": verdict.examples,
    }


def _recovery(times_ms: list[float]) -> dict[str, int]:
    """A summary of the recovery times, over the faults after which the system recovered before the next one."""
    if not times_ms:
        return {}
    return {"recovery_ms_p50": round(statistics.median(times_ms)), "recovery_ms_max": round(max(times_ms))}


def table(report: dict[str, Any]) -> str:
    lines = [f"{'fault':<28}{'injections':>12}{'recovery p50':>14}{'max':>10}"]
    for name, row in report["faults"].items():
        times = [f"{row[key]} ms" if key in row else "" for key in ("recovery_ms_p50", "recovery_ms_max")]
        lines.append(f"{name:<28}{row['injections']:>12}{times[0]:>14}{times[1]:>10}")
    facts = ", ".join(
        f"{report[name]} {name.replace('_', ' ')}" for name in ("requests", "attempts", "completed", "forgotten")
    )
    broken = ", ".join(f"{name} {count}" for name, count in report["broken"].items())
    return "\n".join(
        [*lines, f"{facts}; statuses {report['statuses']}", f"broken promises: {broken}", *report["examples"]]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--injections", type=int, default=140, help="faults in total (default 140)")
    parser.add_argument("--faults", default=",".join(FAULTS), help=f"comma-separated: {', '.join(FAULTS)}")
    parser.add_argument("--clients", type=int, default=12, help="concurrent clients (default 12)")
    parser.add_argument(
        "--overlapping",
        type=float,
        default=OVERLAPPING_SHARE,
        help="share of faults after which the next one does not wait for the recovery",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the fault times and the requests (default 1)")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    args = parser.parse_args()
    faults = args.faults.split(",")
    if unknown := [name for name in faults if name not in FAULTS]:
        parser.error(f"there is no fault {unknown[0]!r}: choose from {', '.join(FAULTS)}")
    with tempfile.TemporaryDirectory(prefix="firsttoken-chaos-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)  # an embedded Postgres that runs as another user needs access
        report = asyncio.run(
            drill(faults, args.injections, args.clients, args.seed, Path(folder), overlapping=args.overlapping)
        )
    print(table(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2))
    return int(any(report["broken"].values()))


if __name__ == "__main__":
    sys.exit(main())
