"""What answers cost the database, and what a remote database costs them.

    python -m benchmarks.database [--streams 10,100] [--rtt 0,20,80,150] [--seconds 10] [--rounds 5] [--json FILE]

Starts a worker that is real except for its model, which is paced and costs next to nothing. `load`: transactions, round
trips, notifications and connections of stored streams of eight tenants. `far`: TTFT and the spans of turns with a given
round-trip time to Postgres; stored and not stored, without a conversation and in one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from benchmarks.fanout.worker import run
from benchmarks.far_postgres import FarPostgres
from migrations.embedded import EmbeddedPostgres
from migrations.pool import Database
from migrations.runner import migrate
from worker.auth.keys import Keys
from worker.auth.secret import Secret
from worker.runs.running_store import CHANNEL

SECRET = "a secret for a benchmark of the database"
# Tokens per second and stream: for lasting streams, faster than batches are written; for turns, so fast that the next
# step never waits for them.
LOAD_RATE, FAR_RATE = 10.0, 200.0
TENANTS = 8
ENDLESS = 100_000
START_S, SETTLE_S = 120.0, 2.0
HISTORY = [{"role": "user" if number % 2 else "assistant", "content": f"Turn {number}."} for number in range(12)]
TEXT = b"output_text.delta"


@dataclass(frozen=True, slots=True)
class World:
    """A worker and its database. `keys`: API keys of different tenants. `direct`: a connection past the proxy."""

    proxy: FarPostgres
    direct: asyncpg.Connection[asyncpg.Record]
    http: aiohttp.ClientSession
    keys: list[str]

    def headers(self, number: int = 0) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[number % len(self.keys)]}"}


@asynccontextmanager
async def world(rate: float) -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        for folder in (home, home / "far"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o711)
        with EmbeddedPostgres(home) as server:
            await migrate(server.owner_dsn)
            database = await Database.connect(server.app_dsn)
            keys = Keys(database, Secret(SECRET.encode()))
            tenants = [await keys.tenant(f"tenant {number}") for number in range(TENANTS)]
            made = [(await keys.create(tenant, "benchmark"))[1] for tenant in tenants]
            await database.close()
            direct = await asyncpg.connect(server.owner_dsn)
            proxy = FarPostgres(server.owner_dsn, home / "far")
            async with proxy.serving(), _worker(home, proxy.dsn, rate) as url:
                connector = aiohttp.TCPConnector(limit=0)
                timeout = aiohttp.ClientTimeout(total=None)
                async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as http:
                    yield World(proxy, direct, http, made)
            await direct.close()


@asynccontextmanager
async def _worker(home: Path, dsn: str, rate: float) -> AsyncIterator[str]:
    ready = home / "ready.json"
    command = [sys.executable, "-m", "benchmarks.database", "--serve", str(home), "--dsn", dsn]
    command += ["--rate", str(rate)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        give_up_at = time.monotonic() + START_S
        while not ready.exists():
            if process.returncode is not None or time.monotonic() > give_up_at:
                raise SystemExit("the worker did not start")
            await asyncio.sleep(0.05)
        yield json.loads(ready.read_text())["url"]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def load(world: World, streams: int, seconds: float) -> dict[str, Any]:
    """The load on the database while this many stored answers are streamed."""
    told = 0
    listener = await asyncpg.connect(world.proxy.dsn.replace(str(Path(world.proxy._path).parent), _folder(world)))

    def hear(*_: object) -> None:
        nonlocal told
        told += 1

    await listener.add_listener(CHANNEL, hear)
    started = [asyncio.create_task(_endless(world, number)) for number in range(streams)]
    try:
        await asyncio.sleep(SETTLE_S + streams / 100)
        counts, told = world.proxy.counts, 0
        before, trips, began = await _commits(world), counts.round_trips, time.monotonic()
        counts.connections_max = counts.connections
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        commits, trips = await _commits(world) - before, counts.round_trips - trips
    finally:
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)
        await listener.close()
    return {
        "kind": "load",
        "streams": streams,
        "transactions_per_s": round(commits / took, 1),
        "round_trips_per_s": round(trips / took, 1),
        "notifications_per_s": round(told / took, 1),
        "transactions_per_stream_s": round(commits / took / streams, 3),
        "connections": counts.connections_max,
    }


def _folder(world: World) -> str:
    return str(Path(world.proxy._real).parent)


async def _commits(world: World) -> int:
    await world.direct.execute("select pg_stat_clear_snapshot()")
    return int(await world.direct.fetchval("select sum(xact_commit) from pg_stat_database"))


async def _endless(world: World, number: int) -> None:
    body = {"input": f"Tell me about {number}.", "stream": True, "max_output_tokens": ENDLESS}
    async with world.http.post("/v1/responses", json=body, headers=world.headers(number)) as answer:
        async for _ in answer.content.iter_any():
            pass


async def far(world: World, rtt_ms: float, rounds: int) -> list[dict[str, Any]]:
    """The turns of each kind, one after the other, at this round-trip time."""
    world.proxy.rtt_s = rtt_ms / 1e3
    try:
        conversation = await _conversation(world)
        kinds: dict[str, dict[str, Any]] = {
            "not stored": {"store": False},
            "stored": {},
            "in a conversation": {"conversation": conversation},
        }
        return [await _turns(world, name, rtt_ms, more, rounds) for name, more in kinds.items()]
    finally:
        world.proxy.rtt_s = 0.0


async def _conversation(world: World) -> str:
    async with world.http.post("/v1/conversations", json={"items": HISTORY}, headers=world.headers()) as answer:
        answer.raise_for_status()
        id: str = (await answer.json())["id"]
        return id


async def _turns(world: World, name: str, rtt_ms: float, more: dict[str, Any], rounds: int) -> dict[str, Any]:
    firsts, wholes, spans, trips = [], [], dict[str, list[float]](), []
    for number in range(rounds + 1):
        before = world.proxy.counts.round_trips
        body = {"input": "Hello.", "stream": True, "max_output_tokens": 3, "include": ["firsttoken:trace"], **more}
        began = time.perf_counter()
        first = 0.0
        async with world.http.post("/v1/responses", json=body, headers=world.headers()) as answer:
            answer.raise_for_status()
            trace: dict[str, Any] = {}
            async for line in answer.content:
                if not first and TEXT in line and line.startswith(b"data:"):
                    first, trip = time.perf_counter() - began, world.proxy.counts.round_trips - before
                if b'"firsttoken:trace"' in line and line.startswith(b"data:"):
                    trace = json.loads(line[5:])["trace"]
        if not number:
            continue  # not representative: the API key was not cached yet, and statements were still being planned
        firsts.append(first * 1e3)
        wholes.append((time.perf_counter() - began) * 1e3)
        trips.append(trip)
        for span in trace.get("spans", ()):
            spans.setdefault(span["name"], []).append(span["duration_ms"] or 0.0)
        await asyncio.sleep(0.5)  # writes after the answer must not overlap the next turn
    return {
        "kind": "far",
        "turn": name,
        "rtt_ms": rtt_ms,
        "first_token_ms": round(statistics.median(firsts), 1),
        "whole_ms": round(statistics.median(wholes), 1),
        "round_trips_before_first_token": statistics.median(trips),
        "spans_ms": {name: round(statistics.median(values), 1) for name, values in spans.items()},
    }


async def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def show(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)

    async with world(FAR_RATE) as there:
        for rtt_ms in map(float, filter(None, options.rtt.split(","))):
            for row in await far(there, rtt_ms, options.rounds):
                show(row)
    async with world(LOAD_RATE) as there:
        for streams in map(int, filter(None, options.streams.split(","))):
            show(await load(there, streams, options.seconds))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="10,100", help="concurrent streams, comma-separated (default 10,100)")
    parser.add_argument("--rtt", default="0,20,80,150", help="round-trip times in milliseconds (default 0,20,80,150)")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each load (default 10)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each kind (default 5)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dsn", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        os.environ.clear()
        run(options.serve, options.serve / "ready.json", options.rate, database_url=options.dsn, secret=SECRET)
        return
    rows = asyncio.run(measure(options))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
