"""What storing an answer costs its reader: time per output token with and without `store`, in alternation.

    python -m benchmarks.persistence [--rounds 30] [--clients 4] [--json FILE]

Starts a worker with the bundled model. In every round the same requests are sent once stored and once not, in changing
order, so that other load on the machine affects both. Time per output token is what a reader sees: from the first piece
of text to the last, divided by the number of gaps. CPU time per output token is that of the worker, which a busy
machine disturbs less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp

from benchmarks.served import Served, served

QUESTION = "Repeat after me: " + "one two three four five six seven " * 12  # the bundled model does not end this soon
TOKENS_MAX = 256
PIECES_MIN = 32  # a shorter answer says little about the pace
DELTA = b'data: {"type":"response.output_text.delta"'
TARGET = 1.02
SPREAD_MAX = 0.1  # interquartile range of the ratio; above it, other load on the machine dominates


@dataclass(frozen=True, slots=True)
class Round:
    """Milliseconds per output token of the two halves of one round."""

    stored_ms: float
    unstored_ms: float

    @property
    def ratio(self) -> float:
        return self.stored_ms / self.unstored_ms


async def arrivals_s(http: aiohttp.ClientSession, target: Served, *, store: bool) -> list[float]:
    """The arrival times of the pieces of one streamed answer. Raises SystemExit if there were too few."""
    body = {
        "input": QUESTION,
        "stream": True,
        "store": store,
        "temperature": 0,
        "max_output_tokens": TOKENS_MAX,
    }
    times: list[float] = []
    async with http.post(target.url + "/v1/responses", json=body, headers=target.headers) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(DELTA):
                times.append(perf_counter())
    if len(times) < PIECES_MIN:
        raise SystemExit(f"An answer has only {len(times)} pieces, too few to measure its pace.")
    return times


async def one_round(http: aiohttp.ClientSession, target: Served, number: int, clients: int) -> tuple[Round, Round]:
    """One round, measured by the clients' clock and by the worker's CPU time."""
    paces: dict[bool, float] = {}
    costs: dict[bool, float] = {}
    for store in (True, False) if number % 2 else (False, True):
        before_s = target.cpu_s
        streams = await asyncio.gather(*(arrivals_s(http, target, store=store) for _ in range(clients)))
        costs[store] = (target.cpu_s - before_s) * 1000 / sum(map(len, streams))
        paces[store] = statistics.median((times[-1] - times[0]) * 1000 / (len(times) - 1) for times in streams)
    return Round(paces[True], paces[False]), Round(costs[True], costs[False])


def summary(rounds: Sequence[Round]) -> dict[str, float]:
    """Medians over the rounds. `ratio` is the median of the ratios by round; p25 and p75 show how reliable it is."""
    p25, ratio, p75 = statistics.quantiles([each.ratio for each in rounds], n=4)
    return {
        "stored_ms": statistics.median(each.stored_ms for each in rounds),
        "unstored_ms": statistics.median(each.unstored_ms for each in rounds),
        "ratio": ratio,
        "ratio_p25": p25,
        "ratio_p75": p75,
        "rounds": len(rounds),
    }


def verdict(row: dict[str, float]) -> str:
    if row["ratio_p75"] - row["ratio_p25"] > SPREAD_MAX:
        return "too noisy to tell"
    return f"{'within' if row['ratio'] <= TARGET else 'above'} the target of {TARGET}"


def show(title: str, table: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}\n{'':18}{'stored ms':>10}{'not ms':>10}{'ratio':>8}{'p25':>8}{'p75':>8}{'rounds':>8}")
    for name, row in table.items():
        numbers = f"{row['stored_ms']:10.3f}{row['unstored_ms']:10.3f}{row['ratio']:8.3f}"
        spread = f"{row['ratio_p25']:8.3f}{row['ratio_p75']:8.3f}{row['rounds']:8.0f}"
        print(f"{name:18}{numbers}{spread}   {verdict(row)}")


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {}
    async with served() as worker, aiohttp.ClientSession() as http:
        for clients in sorted({1, options.clients}):
            await one_round(http, worker, 0, clients)  # warm-up, not counted
            told = [await one_round(http, worker, number, clients) for number in range(options.rounds)]
            by_clock, by_cost = zip(*told, strict=True)
            title = f"{clients} client{'s' * (clients > 1)}"
            report[title] = {"time per token": summary(by_clock), "CPU per token": summary(by_cost)}
            show(title, report[title])
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="pairs of measurements, 2 or more (default 30)")
    parser.add_argument("--clients", type=int, default=4, help="streams in the concurrent rounds (default 4)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    report = asyncio.run(measure(options))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    else:
        print(json.dumps(report), file=sys.stderr)


if __name__ == "__main__":
    main()
