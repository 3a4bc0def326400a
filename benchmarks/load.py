"""Admission, goodput and fairness under load, up to several times the capacity.

    python -m benchmarks.load [--seconds 60] [--loads 0.5 1 2 3 4] [--first-ms 500] [--late refuse] [--json FILE]
    python -m benchmarks.load --even 30 0.1   # on a simulated device: 30 ms per step plus 0.1 ms per row
    python -m benchmarks.load --llama-server  # the open loop on llama-server too: same model, slots and requests

The parts, in order:

- capacity: a closed loop with as many clients as streams;
- open loop at multiples of the capacity: Poisson arrivals from two tenants (nine of ten requests are the large one's),
  lognormal lengths of prompts and answers; one in five requests is of the class `flex`, which no client waits for and
  which is not judged;
- burst: the time after it until TTFT is back to normal;
- flood: interactive requests alone, and beside a flood of `flex` requests;
- fairness: four clients of one tenant, which think between two questions, alone and beside forty of another tenant.

Tokens are those that were computed, of prompts and answers. The end of the output tells which goals are missed; they
are set for an otherwise idle machine. In the open loop a refused client does not retry, so refusals count against the
goodput of all requests. llama-server has neither forecasts nor refusals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import aiohttp

from benchmarks.engine.peer import cache_folder, llama_server
from benchmarks.engine.servers import Setup
from benchmarks.engine.servers import llama_server as llama_server_process
from benchmarks.engine.target import session
from benchmarks.served import Served, serve
from inference.bundled import CHAT_MODEL
from inference.config import CONTEXT_DEFAULT

STREAMS = 8
TENANTS = ("large", "small")
LARGE_SHARE = 0.9
FLEX_SHARE = 0.2
PROMPT_WORDS, PROMPT_SIGMA, PROMPT_MAX = 60, 0.8, 600
ANSWER_TOKENS, ANSWER_SIGMA, ANSWER_MAX = 24, 0.6, 120
PACE_MS = 250.0  # lenient, for two slow cores with eight streams: the pace is not tested here
BURST = 40
FLOOD = 40  # concurrent `flex` requests, throughout
PERSON_SHARE = 0.25  # of the capacity: the interactive load, with and without the flood
THINK_S = 1.0
GOALS = {"in_time_at_3": 0.95, "tokens_of_best": 0.95, "flood_p95_ratio": 1.1, "recovery_s": 2.0, "keeps": 0.9}
AT_MOST = ("flood_p95_ratio", "recovery_s")
RECOVERED = 1.5  # times the normal TTFT
WORDS = ("token", "road", "socket", "model", "queue", "turn", "others", "wait", "back", "from", "to", "and")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the worker computed for one request."""

    written: int = 0
    read: int = 0

    @classmethod
    def told(cls, line: bytes) -> Usage:
        usage = json.loads(line.removeprefix(b"data: "))["usage"]
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        return cls(usage["completion_tokens"], usage["prompt_tokens"] - cached)


@dataclass(frozen=True, slots=True)
class Call:
    """One request and its outcome. Times are in milliseconds since it was sent."""

    tenant: str
    flex: bool
    status: int
    answered_ms: float  # until the headers
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tokens: int = 0  # of the answer
    read_tokens: int = 0  # of the prompt, without cached ones
    retry_after_ms: float | None = None

    @property
    def admitted(self) -> bool:
        return self.status == 200

    @property
    def computed_tokens(self) -> int:
        return self.tokens + self.read_tokens

    def in_time(self, first_ms: float) -> bool:
        return self.ttft_ms is not None and self.ttft_ms <= first_ms and (self.tpot_ms or 0) <= PACE_MS


@dataclass(frozen=True, slots=True)
class Client:
    url: str
    http: aiohttp.ClientSession
    keys: dict[str, str] = field(default_factory=dict)  # of the tenants
    worker: Served | None = None  # None: llama-server
    rng: random.Random = field(default_factory=lambda: random.Random(1))  # for arrivals
    asks: dict[str, random.Random] = field(default_factory=dict)  # for prompts, by tenant
    asked: Counter[str] = field(default_factory=Counter)

    def restart(self) -> None:
        """Reset the random generators: arrivals and lengths repeat those of the previous part, with other words."""
        self.rng.seed(1)
        self.asks.clear()

    def body(self, tenant: str) -> dict[str, Any]:
        """The body of a new request. No two share their first word, so nothing is cached."""
        rng = self.asks.setdefault(tenant, random.Random(tenant))
        self.asked[tenant] += 1
        words = min(PROMPT_MAX, int(rng.lognormvariate(0, PROMPT_SIGMA) * PROMPT_WORDS))
        said = " ".join([f"{tenant} {self.asked[tenant]}", *(rng.choice(WORDS) for _ in range(max(3, words)))])
        tokens = min(ANSWER_MAX, max(4, int(rng.lognormvariate(0, ANSWER_SIGMA) * ANSWER_TOKENS)))
        messages, usage = [{"role": "user", "content": said}], {"include_usage": True}
        return {"messages": messages, "max_completion_tokens": tokens, "stream": True, "stream_options": usage}

    async def call(
        self, tenant: str, *, flex: bool = False, tier: str | None = None, body: dict[str, Any] | None = None
    ) -> Call:
        tier = "flex" if flex else tier
        asked = (body or self.body(tenant)) | ({"service_tier": tier} if tier else {})
        headers = {"Authorization": f"Bearer {self.keys.get(tenant)}"}
        sent, pieces, usage = perf_counter(), list[float](), Usage()
        async with self.http.post(f"{self.url}/v1/chat/completions", json=asked, headers=headers) as answer:
            answered_ms = (perf_counter() - sent) * 1e3
            if answer.status != 200:
                wait = answer.headers.get("Retry-After-Ms")
                return Call(tenant, flex, answer.status, answered_ms, retry_after_ms=float(wait) if wait else None)
            async for line in answer.content:
                if b'"content":"' in line and b'"content":""' not in line:  # the first event has only the role
                    pieces.append(perf_counter())
                elif b'"choices":[]' in line:
                    usage = Usage.told(line)
        first_ms = (pieces[0] - sent) * 1e3 if pieces else None
        pace_ms = (pieces[-1] - pieces[0]) * 1e3 / (len(pieces) - 1) if len(pieces) > 1 else None
        return Call(tenant, flex, 200, answered_ms, first_ms, pace_ms, usage.written, usage.read)

    async def closed(
        self, clients: dict[str, int], seconds: float, *, think_s: float = 0.0, flex: bool = False
    ) -> list[Call]:
        """Run a closed loop: each client sends its next request when it has its answer, or after the Retry-After of a
        refusal.
        """
        end, calls = perf_counter() + seconds, list[Call]()

        async def ask(tenant: str) -> None:
            while perf_counter() < end:
                calls.append(call := await self.call(tenant, flex=flex))
                await asyncio.sleep(think_s if call.admitted else (call.retry_after_ms or 0) / 1e3)

        await asyncio.gather(*(ask(tenant) for tenant, count in clients.items() for _ in range(count)))
        return calls

    async def open(self, rate: float, seconds: float) -> list[Call]:
        """Run an open loop with `rate` requests per second: arrivals do not wait for answers."""
        end, tasks = perf_counter() + seconds, list[asyncio.Task[Call]]()
        while perf_counter() < end:
            tenant = TENANTS[self.rng.random() >= LARGE_SHARE]
            tasks.append(asyncio.create_task(self.call(tenant, flex=self.rng.random() < FLEX_SHARE)))
            await asyncio.sleep(self.rng.expovariate(rate))
        return list(await asyncio.gather(*tasks))

    async def forecasts(self) -> Counter[tuple[str, str]]:
        """Cumulative counts of the ratio of actual to predicted TTFT, by whether the request waited for a slot ("yes",
        "no") and upper bound."""
        if self.worker is None:
            return Counter()
        async with self.http.get(f"{self.url}/metrics", headers=self.worker.headers) as answer:
            text = await answer.text()
        counted: Counter[tuple[str, str]] = Counter()
        for labels, count in re.findall(r"firsttoken_forecast_ratio_bucket\{([^}]*)\} (\S+)", text):
            told = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            counted[told["queued"], told["le"]] += int(float(count))
        return counted


@asynccontextmanager
async def opened(first_ms: float, late: str, even: Sequence[float]) -> AsyncIterator[Client]:
    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-", ignore_cleanup_errors=True) as folder:
        targets = f"embedded={first_ms:g}/{PACE_MS:g}"
        program = ("benchmarks.even_worker", *map(str, even)) if even else ("worker",)
        flags = ("--docs", "", "--targets", targets, "--late", late, "--streams", str(STREAMS))
        async with (
            serve(Path(folder), *flags, program=program) as worker,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        ):
            keys = {tenant: await new_key(Path(folder), tenant) for tenant in TENANTS}
            yield Client(worker.url, http, keys, worker)


@asynccontextmanager
async def peer(flash: bool) -> AsyncIterator[Client]:
    program = await asyncio.to_thread(llama_server, cache_folder())
    setup = Setup(CHAT_MODEL, STREAMS, CONTEXT_DEFAULT)
    async with session() as http, llama_server_process(program, setup, http, slots=STREAMS, flash=flash) as endpoint:
        yield Client(endpoint.url, http)


async def new_key(home: Path, tenant: str) -> str:
    command = [sys.executable, "-m", "worker", "keys", "create", "load", "--tenant", tenant, "--home", str(home)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    found = re.search(rb"ft_[\w-]+", told)
    assert found, told
    return found[0].decode()


@dataclass(frozen=True, slots=True)
class Row:
    """The results at one load. Shares are of the judged requests, which excludes `flex`."""

    load: float
    asked: int
    refused: int
    goodput_admitted: float
    goodput_all: float
    goodput_large: float
    goodput_small: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    refusal_p50_ms: float
    refusal_p99_ms: float
    tokens_per_s: float
    forecasts_within_20: float
    queued_within_20: float  # of requests that waited for a slot
    placed_within_20: float  # of requests that got one at once
    forecasts_not_late: float
    rss_mb: float


def share(hits: int, of: int) -> float:
    return hits / of if of else float("nan")


def quantile(values: Sequence[float], at: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(at * len(ordered)))] if ordered else float("nan")


async def measured(client: Client, load: float, rate: float, seconds: float, first_ms: float) -> Row:
    before, began = await client.forecasts(), perf_counter()
    calls = await client.open(rate, seconds)
    took_s = perf_counter() - began
    told = await client.forecasts()
    told.subtract(before)
    judged = [call for call in calls if not call.flex]
    admitted = [call for call in judged if call.admitted]
    refusals = [call.answered_ms for call in calls if not call.admitted]
    first = [call.ttft_ms for call in admitted if call.ttft_ms is not None]

    def good(some: Sequence[Call]) -> float:
        return share(sum(call.in_time(first_ms) for call in some), len(some))

    return Row(
        load,
        len(calls),
        len(refusals),
        good(admitted),
        good(judged),
        good([call for call in judged if call.tenant == "large"]),
        good([call for call in judged if call.tenant == "small"]),
        quantile(first, 0.5),
        quantile(first, 0.95),
        quantile(refusals, 0.5),
        quantile(refusals, 0.99),
        sum(call.computed_tokens for call in calls) / took_s,
        within(told, "yes", "no"),
        within(told, "yes"),
        within(told, "no"),
        share(told["yes", "1.2"] + told["no", "1.2"], told["yes", "+Inf"] + told["no", "+Inf"]),
        client.worker.rss_mb if client.worker else float("nan"),
    )


def within(told: Counter[tuple[str, str]], *queued: str) -> float:
    """The share of forecasts within 20 % of the actual TTFT."""
    return share(sum(told[each, "1.2"] - told[each, "0.8"] for each in queued), sum(told[e, "+Inf"] for e in queued))


async def recovery_s(client: Client) -> float:
    """Seconds from the last answer of a burst until TTFT is back to normal; infinity after a minute."""
    body = {"messages": [{"role": "user", "content": "Hello."}], "max_completion_tokens": 4, "stream": True}
    usual_ms = median([(await client.call("small", body=body)).ttft_ms or 0.0 for _ in range(5)])
    await asyncio.gather(*(client.call("large") for _ in range(BURST)))
    ended = perf_counter()
    while (call := await client.call("small", body=body)).ttft_ms is None or call.ttft_ms > RECOVERED * usual_ms:
        if perf_counter() - ended > 60:
            return float("inf")
    return perf_counter() - ended - (call.ttft_ms or 0) / 1e3


async def flood(client: Client, rate: float, seconds: float) -> dict[str, float]:
    """TTFT of interactive requests alone, and beside a flood of background requests."""
    told: dict[str, float] = {}

    async def people() -> list[Call]:
        end, tasks = perf_counter() + seconds, list[asyncio.Task[Call]]()
        while perf_counter() < end:
            tasks.append(asyncio.create_task(client.call("small", tier="priority")))
            await asyncio.sleep(client.rng.expovariate(rate))
        return list(await asyncio.gather(*tasks))

    for name, requests in (("alone", 0), ("beside", FLOOD)):
        client.restart()
        flooding = asyncio.create_task(client.closed({"large": requests}, seconds, flex=True))
        first = [call.ttft_ms for call in await people() if call.ttft_ms is not None]
        told |= {f"{name}_p50_ms": quantile(first, 0.5), f"{name}_p95_ms": quantile(first, 0.95)}
        told[f"{name}_flex_answers"] = sum(call.admitted for call in await flooding)
    return told


async def fairness(client: Client, seconds: float, first_ms: float) -> dict[str, float]:
    """Four clients alone, and beside forty of another tenant: answers and tokens per second, and the share on time."""
    told: dict[str, float] = {}
    for name, clients in (("alone", {"small": 4}), ("beside", {"large": 40, "small": 4})):
        client.restart()
        calls = [call for call in await client.closed(clients, seconds, think_s=THINK_S) if call.tenant == "small"]
        done = [call for call in calls if call.admitted]
        told |= {
            f"{name}_answers_per_s": len(done) / seconds,
            f"{name}_tokens_per_s": sum(call.tokens for call in done) / seconds,
            f"{name}_in_time": share(sum(call.in_time(first_ms) for call in calls), len(calls)),
            f"{name}_ttft_p50_ms": quantile([call.ttft_ms for call in done if call.ttft_ms is not None], 0.5),
        }
    return told


async def capacity(client: Client, seconds: float) -> tuple[float, float]:
    """Requests and tokens per second in a closed loop with as many clients as streams."""
    await client.closed({"large": STREAMS}, seconds / 4)  # warm
    calls = await client.closed({"large": STREAMS}, seconds)
    rate = len([call for call in calls if call.admitted]) / seconds
    tokens_per_s = sum(call.computed_tokens for call in calls) / seconds
    print(f"capacity {rate:.2f} requests/s, {tokens_per_s:.0f} tokens/s", flush=True)
    return rate, tokens_per_s


async def open_loop(client: Client, rate: float, arguments: argparse.Namespace) -> list[Row]:
    """One row per load, printed as soon as it is measured. `rate`: the capacity in requests per second."""
    rows = []
    for load in arguments.loads:
        rows.append(await measured(client, load, load * rate, arguments.seconds, arguments.first_ms))
        told = {name: round(value, 3) for name, value in asdict(rows[-1]).items() if value == value}
        print(json.dumps(told), flush=True)
    return rows


async def beside(rate: float, arguments: argparse.Namespace) -> list[Row]:
    """The rows of llama-server at our rates, with or without flash attention, whichever gives it more capacity."""
    capacities = {}
    for flash in (False, True):
        async with peer(flash) as client:
            capacities[flash] = (await capacity(client, arguments.seconds / 4))[1]
    async with peer(capacities[True] > capacities[False]) as client:
        await capacity(client, arguments.seconds)
        return await open_loop(client, rate, arguments)


async def main(arguments: argparse.Namespace) -> None:
    async with opened(arguments.first_ms, arguments.late, arguments.even) as client:
        rate, _ = await capacity(client, arguments.seconds)
        rows = await open_loop(client, rate, arguments)
        recovered = await recovery_s(client)
        print(f"after a burst of {BURST}: TTFT back to normal {recovered:.2f} s after the last answer", flush=True)
        flooded = await flood(client, PERSON_SHARE * rate, arguments.seconds)
        print(json.dumps({name: round(value, 3) for name, value in flooded.items()}), flush=True)
        fair = await fairness(client, arguments.seconds, arguments.first_ms)
        print(json.dumps({name: round(value, 3) for name, value in fair.items()}), flush=True)
    theirs = await beside(rate, arguments) if arguments.llama_server else []
    reached = {
        "in_time_at_3": next((row.goodput_admitted for row in rows if row.load == 3.0), float("nan")),
        "tokens_of_best": rows[-1].tokens_per_s / max(row.tokens_per_s for row in rows),
        "flood_p95_ratio": flooded["beside_p95_ms"] / flooded["alone_p95_ms"],
        "recovery_s": recovered,
        "keeps": fair["beside_answers_per_s"] / fair["alone_answers_per_s"],
    }
    for name, value in reached.items():
        met = value <= GOALS[name] if name in AT_MOST else value >= GOALS[name]
        print(f"{name:<16} {value:6.2f}  goal {GOALS[name]:5.2f}  {'met' if met else 'missed'}")
    if arguments.json:
        whole = {
            "capacity": rate,
            "rows": [asdict(row) for row in rows],
            "llama_server": [asdict(row) for row in theirs],
            "recovery_s": recovered,
            "flood": flooded,
            "fairness": fair,
            "reached": reached,
        }
        arguments.json.write_text(json.dumps(whole, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each part (default 60)")
    parser.add_argument(
        "--loads", type=float, nargs="+", default=[0.5, 1.0, 2.0, 3.0, 4.0], help="multiples of the capacity"
    )
    parser.add_argument("--first-ms", type=float, default=500.0, help="TTFT target (default 500)")
    parser.add_argument("--late", choices=("refuse", "wait"), default="refuse", help="late requests (default refuse)")
    parser.add_argument(
        "--even", type=float, nargs=2, default=(), metavar=("STEP_MS", "ROW_MS"), help="use a simulated device"
    )
    parser.add_argument("--llama-server", action="store_true", help="the open loop on llama-server too, at our rates")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    asyncio.run(main(parser.parse_args()))
