"""Where the time of a turn goes: p50 and p95 of every span, for consecutive and concurrent turns.

    python -m benchmarks.turn [--turns 40] [--clients 8] [--json FILE]

Starts a worker with the bundled model, or measures a running one (--url, --api-key). The spans are those of the turn's
`firsttoken:trace` event. `outside engine` is TTFT without queue, prefill and retrieval: what the platform adds to the
model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.served import Served, served

HISTORY_ITEMS = 50
ITEMS_PER_CALL = 20  # the public contract's limit
TOOLS = ["calculator", "current_time", "convert_units", "search_documents"]
ENGINE = ("queue", "prefill", "retrieve")
SPANS = ["edge", "auth", "hydrate", "retrieve", "open", "embed", "search", "fuse", "rerank", "compress", "assemble",
         "tokenize", "queue", "prefill", "first_token", "decode", "tool", "flush"]  # fmt: skip
TOTALS = ["ttft", "outside engine", "tpot", "total"]


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    question: str
    tools: Sequence[dict[str, Any]] = ()
    history_items: int = 0


DOCUMENTS = {"type": "file_search", "vector_store_ids": ["docs"]}
SCENARIOS = [
    Scenario("chat", "hello there, number {n}"),
    Scenario(f"chat after {HISTORY_ITEMS} items", "hello again, number {n}", history_items=HISTORY_ITEMS),
    Scenario("tools", "what is {n} * 7", [{"type": f"firsttoken:{name}"} for name in TOOLS]),
    Scenario("documents", "What is the default port of worker {n}?", [DOCUMENTS]),
]


class Client:
    def __init__(self, http: aiohttp.ClientSession, target: Served) -> None:
        self._http = http
        self._target = target

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._http.post(self._target.url + path, json=body, headers=self._target.headers) as answer:
            answer.raise_for_status()
            return dict(await answer.json())

    async def conversation(self, items: int) -> str:
        """Create a conversation with this many items."""
        created = await self.post("/v1/conversations", {})
        said = [
            {"type": "message", "role": ("user", "assistant")[i % 2], "content": f"This is remark {i} of our talk."}
            for i in range(items)
        ]
        for start in range(0, items, ITEMS_PER_CALL):
            await self.post(f"/v1/conversations/{created['id']}/items", {"items": said[start : start + ITEMS_PER_CALL]})
        return str(created["id"])

    async def turn(self, body: dict[str, Any]) -> dict[str, float]:
        """Run one streamed turn; returns milliseconds by span name, and the totals."""
        usual = {"model": "demo-chat", "stream": True, "temperature": 0, "max_output_tokens": 64}
        body = {**usual, "include": ["firsttoken:trace"], **body}
        trace: dict[str, Any] | None = None
        async with self._http.post(
            self._target.url + "/v1/responses", json=body, headers=self._target.headers
        ) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if line.startswith(b'data: {"type":"firsttoken:trace"'):
                    trace = json.loads(line[6:])["trace"]
        if trace is None:
            raise RuntimeError("the turn ended without its trace")
        return measures(trace)


def measures(trace: dict[str, Any]) -> dict[str, float]:
    """Milliseconds by span name (summed over the steps of the turn) and of the totals that the trace has."""
    sums: dict[str, float] = {}
    for span in trace["spans"]:
        name = span["name"].partition(":")[0]
        sums[name] = sums.get(name, 0.0) + span["duration_ms"]
    if trace["ttft_ms"] is not None:
        before = [s for s in trace["spans"] if s["name"] in ENGINE and s["start_ms"] < trace["ttft_ms"]]
        sums["ttft"] = trace["ttft_ms"]
        sums["outside engine"] = trace["ttft_ms"] - sum(span["duration_ms"] for span in before)
        if "tool" in sums:  # the first visible output is an argument, and the model wrote the name before it
            del sums["outside engine"]
    if trace["tpot_ms"] is not None:
        sums["tpot"] = trace["tpot_ms"]
    return sums | {"total": trace["duration_ms"]}


async def run(client: Client, scenario: Scenario, turns: int, clients: int) -> list[dict[str, float]]:
    """Run `turns` turns with `clients` clients. Each turn has its own conversation, with the same earlier items."""
    numbers = iter(range(turns))
    results: list[dict[str, float]] = []

    async def one() -> None:
        for n in numbers:
            conversation = await client.conversation(scenario.history_items)
            body = {"input": scenario.question.format(n=n), "tools": list(scenario.tools), "conversation": conversation}
            results.append(await client.turn(body))

    await asyncio.gather(*(one() for _ in range(clients)))
    return results


def summary(results: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """p50 and p95 of every measure, in milliseconds, in chronological order."""
    table = {}
    for name in [*SPANS, *TOTALS]:
        values = sorted(result[name] for result in results if name in result)
        if values:
            p95 = values[min(len(values) - 1, int(0.95 * len(values)))]
            table[name] = {"p50": statistics.median(values), "p95": p95, "n": len(values)}
    return table


def show(title: str, table: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}\n{'':18}{'p50 ms':>10}{'p95 ms':>10}{'turns':>8}")
    for name, row in table.items():
        print(f"{name:18}{row['p50']:10.2f}{row['p95']:10.2f}{row['n']:8.0f}")


@asynccontextmanager
async def target(options: argparse.Namespace) -> AsyncIterator[Served]:
    if options.url:
        yield Served(options.url.rstrip("/"), options.api_key, 0, 0.0)
    else:
        async with served() as worker:
            yield worker


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {}
    async with target(options) as worker, aiohttp.ClientSession() as http:
        client = Client(http, worker)
        for scenario in SCENARIOS:
            await run(client, scenario, 3, 1)  # warm-up, not counted
            for clients in (1, options.clients):
                title = f"{scenario.name}, {clients} client{'s' * (clients > 1)}"
                report[title] = summary(await run(client, scenario, options.turns, clients))
                show(title, report[title])
        if worker.pid:
            report["worker"] = {"second_start_s": worker.start_s, "rss_mb": worker.rss_mb}
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40, help="turns per scenario (default 40)")
    parser.add_argument("--clients", type=int, default=8, help="clients of the concurrent runs (default 8)")
    parser.add_argument("--url", help="measure the worker at this address instead of starting one")
    parser.add_argument("--api-key", default="", help="its API key")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    report = asyncio.run(measure(options))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    else:
        print(json.dumps(report), file=sys.stderr)


if __name__ == "__main__":
    main()
