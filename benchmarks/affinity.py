"""The cached share of conversations with two workers and two engines, relative to one worker and one engine.

    python -m benchmarks.affinity [--conversations 12] [--turns 6] [--at-once 4] [--json FILE]

All of them are real processes with the bundled model. Tokens are counted, so a busy machine changes nothing. `one`: one
worker and one engine. `two`: two of each behind HAProxy with the configuration in deploy/, which keeps a conversation
on its worker, as the workers keep it on its engine. `elsewhere`: the same two, but each turn goes to the worker that
did not run the previous one, which shows what remains without a load balancer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.served import Served, serve
from tests.deploy.balancers import balancing

READY = re.compile(rb"is ready .* at (\S+)")
# A slot for each conversation: this does not measure evictions in the engine.
RESIDENT, CONTEXT, STREAMS, TOKENS = 64, 2048, 4, 24
SUBJECTS = ("rivers", "roses", "bridges", "violins", "glaciers", "ovens", "kites", "bees", "clocks", "harbours")
GOAL = 0.9


@dataclass(slots=True)
class Read:
    """Token counts of prompts."""

    input: int = 0
    cached: int = 0

    @property
    def share(self) -> float:
        return self.cached / max(1, self.input)


@asynccontextmanager
async def engine(home: Path, number: int) -> AsyncIterator[str]:
    """Run an engine; yields its address. Raises SystemExit if it does not start."""
    options = {"streams": STREAMS, "resident": RESIDENT, "context": CONTEXT, "threads": 1, "kv-disk-mb": 0}
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    where = f"unix:{home / f'engine-{number}.sock'}"
    command = [sys.executable, "-m", "worker", "engine", "--home", str(home), "--listen", where, *flags]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        found = READY.search(await process.stdout.readline())
        if found is None:
            raise SystemExit("the engine did not start")
        yield found[1].decode()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def site(count: int) -> AsyncIterator[list[Served]]:
    """Run `count` engines, and as many workers that use all of them; yields the workers."""
    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        os.chmod(home, 0o711)
        async with AsyncExitStack() as undo:
            engines = [await undo.enter_async_context(engine(home, number)) for number in range(count)]
            flags = ("--engines", ",".join(engines), "--docs", "")
            yield [await undo.enter_async_context(serve(home, *flags)) for _ in range(count)]


@asynccontextmanager
async def balanced(workers: Sequence[Served]) -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-") as folder:
        addresses = [worker.url.removeprefix("http://") for worker in workers]
        async with balancing("haproxy", addresses, Path(folder)) as url:
            yield url


async def converse(url_of: Callable[[int], str], key: str, number: int, turns: int) -> Read:
    """Run one conversation; each turn is sent to `url_of(turn)`."""
    read = Read()
    subject = SUBJECTS[number % len(SUBJECTS)]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:
        made = await _post(http, f"{url_of(0)}/v1/conversations", {})
        for turn in range(turns):
            question = f"Question {turn} of {number}: tell me one more thing about {subject}, please, in a few words."
            body = {
                "input": question,
                "conversation": made["id"],
                "temperature": 0,
                "max_output_tokens": TOKENS,
                "instructions": f"You answer the questions of guest {number} about {subject}, briefly and kindly.",
            }
            usage = (await _post(http, f"{url_of(turn)}/v1/responses", body))["usage"]
            read.input += usage["input_tokens"]
            read.cached += usage["input_tokens_details"]["cached_tokens"]
    return read


async def _post(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with http.post(url, json=body) as answer:
        if answer.status != 200:
            raise SystemExit(await answer.text())
        made: dict[str, Any] = await answer.json()
        return made


async def all_of(url_of: Callable[[int, int], str], key: str, numbers: Sequence[int], turns: int, at_once: int) -> Read:
    """Run these conversations, `at_once` of them concurrently, and add up their tokens. Each turn is sent to
    `url_of(conversation, turn)`."""
    places = asyncio.Semaphore(at_once)

    async def one(number: int) -> Read:
        async with places:
            return await converse(lambda turn: url_of(number, turn), key, number, turns)

    told = await asyncio.gather(*map(one, numbers))
    return Read(sum(each.input for each in told), sum(each.cached for each in told))


async def measure(conversations: int, turns: int, at_once: int) -> list[dict[str, Any]]:
    asked = (range(conversations), turns, at_once)
    reads: dict[str, Read] = {}
    async with site(1) as (only,):
        reads["one"] = await all_of(lambda *_: only.url, only.api_key, *asked)
    async with site(2) as workers, balanced(workers) as url:
        reads["two"] = await all_of(lambda *_: url, workers[0].api_key, *asked)
    async with site(2) as (left, right):  # with empty caches
        urls = (left.url, right.url)
        reads["elsewhere"] = await all_of(lambda number, turn: urls[(number + turn) % 2], left.api_key, *asked)
    one = reads["one"].share
    return [
        {
            "way": way,
            "input_tokens": read.input,
            "cached_tokens": read.cached,
            "share": round(read.share, 3),
            "of_one": round(read.share / one, 3),
        }
        for way, read in reads.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=12, help="conversations per setup (default 12)")
    parser.add_argument("--turns", type=int, default=6, help="turns per conversation (default 6)")
    parser.add_argument("--at-once", type=int, default=4, help="concurrent conversations (default 4)")
    parser.add_argument(
        "--check", action="store_true", help=f"fail if `two` caches less than {GOAL} of what `one` does"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.conversations, options.turns, options.at_once))
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))
    return 1 if options.check and any(row["of_one"] < GOAL for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
