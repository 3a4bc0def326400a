"""Whether memory, descriptors, tasks or rows of a worker grow during half an hour of mixed traffic.

    python -m benchmarks.soak                  # 30 minutes
    python -m benchmarks.soak --minutes 5

Clients chat, store responses, use tools, search documents, embed, upload files, and disconnect midway. They delete
everything they store, so every row count must return to its initial value. Memory is the sum of `rest`, `unused` and
`working` in the ledger of /metrics. Caches have limits of their own and fill up to them; the largest is full within two
minutes, so evictions from it are covered. The median of the second quarter, when everything has been used once, is
compared with that of the last quarter. Fails if anything grew.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import asyncpg

from benchmarks.served import Served, serve
from inference.bundled import EMBEDDER
from inference.llama import model_name
from migrations.embedded import EmbeddedPostgres

CLIENTS = 6
LOOK_S = 5.0
GROWTH_MAX = 0.02  # of memory
PARKED_MB = 64  # the conversation cache, full within two minutes
SLACK = 4  # descriptors and tasks that happen to exist at the moment of a sample
ROWS = ("responses", "response_events", "conversations", "items", "files", "file_pieces", "chunks", "queued_responses")
GAUGE = re.compile(r'^(firsttoken_memory_bytes\{part="(\w+)"\}|firsttoken_event_loop_tasks) (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    memory_mb: float
    descriptors: int
    tasks: int


class Traffic:
    def __init__(self, worker: Served) -> None:
        self._worker = worker
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    async def run(self, seed: int, until: asyncio.Event) -> None:
        dice = random.Random(seed)
        kinds = (self._chat, self._store, self._tools, self._search, self._embed, self._upload, self._leave)
        async with aiohttp.ClientSession(self._worker.url, headers=self._worker.headers) as session:
            while not until.is_set():
                kind = dice.choice(kinds)
                name = kind.__name__.strip("_")
                try:
                    await kind(session, dice)
                    self.done[name] += 1
                except (aiohttp.ClientError, TimeoutError, KeyError) as error:
                    self.failed[f"{name}: {error!r}"] += 1

    async def _chat(self, session: aiohttp.ClientSession, dice: random.Random) -> None:
        body = {"messages": [_message(dice)], "max_tokens": dice.randrange(1, 40), "stream": dice.random() < 0.7}
        async with session.post("/v1/chat/completions", json=body, raise_for_status=True) as answer:
            await answer.read()

    async def _store(self, session: aiohttp.ClientSession, dice: random.Random) -> None:
        """Run a conversation of three turns, then delete all of it."""
        conversation = await _post(session, "/v1/conversations", {})
        told = []
        for _ in range(3):
            body = {"input": _text(dice), "max_output_tokens": 24, "conversation": conversation["id"]}
            told.append((await _post(session, "/v1/responses", body))["id"])
        for id in told:
            await _delete(session, f"/v1/responses/{id}")
        await _delete(session, f"/v1/conversations/{conversation['id']}")

    async def _tools(self, session: aiohttp.ClientSession, dice: random.Random) -> None:
        tools = [{"type": "firsttoken:calculator"}, {"type": "firsttoken:current_time"}]
        body = {"input": f"What is {dice.randrange(100)} * {dice.randrange(100)}?", "tools": tools, "store": False}
        await _post(session, "/v1/responses", body)

    async def _search(self, session: aiohttp.ClientSession, dice: random.Random) -> None:
        tools = [{"type": "file_search", "vector_store_ids": ["docs"]}]
        await _post(session, "/v1/responses", {"input": _text(dice), "tools": tools, "store": False})

    async def _embed(self, session: aiohttp.ClientSession, dice: random.Random) -> None:
        await _post(session, "/v1/embeddings", {"input": [_text(dice), _text(dice)], "model": model_name(EMBEDDER)})

    async def _upload(self, session: aiohttp.ClientSession, dice: random.Random) -> None:
        form = aiohttp.FormData({"purpose": "assistants"})
        form.add_field("file", _text(dice).encode() * 50, filename="notes.md")
        async with session.post("/v1/files", data=form, raise_for_status=True) as answer:
            id = (await answer.json())["id"]
        await _delete(session, f"/v1/files/{id}")

    async def _leave(self, session: aiohttp.ClientSession, dice: random.Random) -> None:
        body = {"messages": [_message(dice)], "max_tokens": 200, "stream": True}
        async with session.post("/v1/chat/completions", json=body) as answer:
            await answer.content.read(dice.randrange(1, 2000))
            answer.close()


def _text(dice: random.Random) -> str:
    return f"Tell me about number {dice.randrange(10**6)} and " + "the same again and " * dice.randrange(20)


def _message(dice: random.Random) -> dict[str, str]:
    return {"role": "user", "content": _text(dice)}


async def _post(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(path, json=body, raise_for_status=True) as answer:
        told: dict[str, Any] = await answer.json()
    return told


async def _delete(session: aiohttp.ClientSession, path: str) -> None:
    async with session.delete(path, raise_for_status=True) as answer:
        await answer.read()


async def look(session: aiohttp.ClientSession, worker: Served) -> Sample:
    async with session.get("/metrics", raise_for_status=True) as answer:
        gauges = {part or name: float(value) for name, part, value in GAUGE.findall(await answer.text())}
    descriptors = len(os.listdir(f"/proc/{worker.pid}/fd"))
    memory = gauges["rest"] + gauges["unused"] + gauges["working"]
    return Sample(memory / 2**20, descriptors, int(gauges["firsttoken_event_loop_tasks"]))


async def rows(home: Path) -> dict[str, int]:
    connection = await asyncpg.connect(EmbeddedPostgres(home).owner_dsn)
    try:
        return {name: await connection.fetchval(f"select count(*) from {name}") for name in ROWS}
    finally:
        await connection.close()


async def soak(minutes: float, home: Path) -> int:
    parked = ("--parked-mb", str(PARKED_MB))
    async with serve(home, *parked) as worker, aiohttp.ClientSession(worker.url, headers=worker.headers) as session:
        traffic, until, samples, before = Traffic(worker), asyncio.Event(), list[Sample](), await rows(home)
        clients = [asyncio.create_task(traffic.run(number, until)) for number in range(CLIENTS)]
        began = monotonic()
        while monotonic() - began < minutes * 60:
            await asyncio.sleep(LOOK_S)
            samples.append(await look(session, worker))
            print(f"\r{(monotonic() - began) / 60:5.1f} min  {samples[-1]}", end="", file=sys.stderr, flush=True)
        until.set()
        await asyncio.gather(*clients)
        await asyncio.sleep(LOOK_S)
        after = await rows(home)
    print(file=sys.stderr)
    print("requests:", ", ".join(f"{name} {count}" for name, count in sorted(traffic.done.items())))
    for failure, count in traffic.failed.items():
        print(f"failed {count} times: {failure}")
    problems = [
        *grown(samples),
        *(f"{name}: {after[name]} rows are left" for name in after if after[name] > before[name]),
    ]
    print("\n".join(problems) or "nothing grew")
    return int(bool(problems or traffic.failed))


def grown(samples: list[Sample]) -> list[str]:
    """What grew from the second quarter to the last one, in words."""
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    problems = []
    for name, allowed in (("memory_mb", GROWTH_MAX), ("descriptors", SLACK), ("tasks", SLACK)):
        before, after = (statistics.median(getattr(sample, name) for sample in part) for part in (early, late))
        print(f"{name:<12} {before:8.1f} -> {after:8.1f}")
        if after - before > (allowed * before if name == "memory_mb" else allowed):
            problems.append(f"{name} grew from {before:.1f} to {after:.1f}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="default 30")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firsttoken-soak-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o711)  # an embedded Postgres that runs as another user needs access
        return asyncio.run(soak(args.minutes, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
