"""What a token and a request cost between the engine's step and the socket: CPU time of the event loop thread.

    python -m benchmarks.fanout                       # the table of benchmarks/README.md
    python -m benchmarks.fanout --only open --api chat --streams 1000 --rate 20
    python -m benchmarks.fanout --only real           # tokens and requests of a real model, and what storing costs it
    python -m benchmarks.fanout --only floor          # the same beside what the libraries alone take
    python -m benchmarks.fanout --only workers        # how two workers scale compared with one

The worker is real except for its model, which gives every stream a token at a fixed rate. `open`: streams that never
end; microseconds per token. `closed`: a new request as soon as an answer ends, with answers of two lengths; their
difference is the cost of the tokens, the rest that of the request. `real`: the bundled model answers on all surfaces in
alternation; microseconds per token with its share of the request, and the throughput of stored answers relative to
others. `floor`: `real` in alternation with bare servers that send the same bytes. `workers`: two workers with one
database, each alone and both together; how many workers' work the two do, by CPU time.

The client has many streams on raw sockets, in a process separate from the worker. CPU time is that of one thread, from
/proc/*/schedstat, so it means the same on a busy machine. With --check the command fails if microseconds or counts miss
their goals; it never judges wall-clock time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import re
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.request import Request, urlopen

from benchmarks.fanout.floor import Answers, serve_bare
from benchmarks.fanout.worker import WRAP_US, recorded, run

STAMP = re.compile(rb"@(\d{9})")
END = b"data: [DONE]"
RECEIVE_BYTES = 1 << 18

Ready: TypeAlias = dict[str, Any]  # the content of a worker's ready file


@dataclass(slots=True)
class Tally:
    """What arrived in a period of time."""

    tokens: int = 0
    size: int = 0  # in bytes
    events: int = 0
    ended: int = 0
    late_us: list[int] = field(default_factory=list)  # from the step that made a token to its arrival here

    def add(self, data: bytes) -> None:
        now_us = time.monotonic_ns() // 1000
        late = [(now_us - int(made)) % WRAP_US for made in STAMP.findall(data)]
        self.late_us += late
        self.tokens += len(late)
        self.size += len(data)
        self.events += data.count(b"data: ")


def request_of(api: str, key: str, number: int, tokens: int) -> bytes:
    """A streamed request; `api` is chat, stored or unstored."""
    text = f"Tell me something long about {number}."
    if api == "chat":
        path: str = "/v1/chat/completions"
        body: dict[str, Any] = {"stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": text}]}
    else:
        path = "/v1/responses"
        body = {"stream": True, "max_output_tokens": tokens, "input": text, "store": api == "stored"}
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Streams:
    """`count` connections to a worker. `open` sends one request on each, and with `again` the next one whenever an
    answer has ended.
    """

    def __init__(self, ready: Ready, api: str, count: int, tokens: int, *, again: bool = False) -> None:
        self._address = ("127.0.0.1", int(ready["url"].rsplit(":", 1)[1]))
        self._key, self._api, self._tokens, self._again = ready["api_key"], api, tokens, again
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._tails: dict[int, bytes] = {}  # the end of the last chunk: an end mark may be split over two chunks
        self._asked = 0
        self.count = count

    def open(self) -> Tally:
        opening = Tally()
        for number in range(self.count):
            connection = socket.create_connection(self._address)
            self._sockets[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)
            self._ask(connection)
            if number % 16 == 15:  # spread out: the cost of accepting connections is not measured
                self.read(0.05, opening)
        return opening

    def _ask(self, connection: socket.socket) -> None:
        self._asked += 1
        self._tails[connection.fileno()] = b""
        connection.sendall(request_of(self._api, self._key, self._asked, self._tokens))

    def read(self, seconds: float, tally: Tally) -> None:
        """Read what arrives during `seconds` into `tally`. Raises SystemExit if a stream breaks."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for number, _ in self._poll.poll(left):
                connection = self._sockets[number]
                data = connection.recv(RECEIVE_BYTES)
                if not data:
                    raise SystemExit("the worker ended a stream")
                if not self._tails[number] and not data.startswith(b"HTTP/1.1 200"):
                    raise SystemExit(data[:500].decode(errors="replace"))
                tally.add(data)
                seen = self._tails[number] + data
                self._tails[number] = seen[-64:]
                if END in seen and seen.endswith(b"0\r\n\r\n"):
                    tally.ended += 1
                    if self._again:
                        self._ask(connection)

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()
        self._poll.close()


APIS = ("chat", "stored", "unstored")
SHORT, LONG = 4, 68  # tokens of the answers of `closed`
# Microseconds of the event loop per token with 64 streams at 20 tokens per second, and per request without its tokens.
TOKEN_GOALS_US = {"chat": 30.0, "stored": 45.0, "unstored": 35.0}
REQUEST_GOALS_US = {"chat": 1000.0}
# The same with the requests of answers of some 30 tokens, while the bundled model computes.
REAL_STREAMS = {"chat": 64, "stored": 32, "unstored": 32}
REAL_GOALS_US = {"chat": 60.0, "stored": 90.0, "unstored": 70.0}
STORING_GOAL = 0.95
GENERATED = 'firsttoken_tokens_total{kind="generated"'
MANY_GOALS = {"chat": 0.5, "stored": 0.65}  # of a core, 1,000 streams
MANY = 1000
ENDLESS = 100_000 - 4_000
START_MAX_S = 120.0
SETTLED_MS, SETTLE_MAX = 250.0, 20
SETTLE_S = 1.0
FAN_OUT_GOAL = 1.8  # of two workers


def threads_s(pid: int) -> dict[int, float]:
    """CPU seconds by thread id. The main thread, whose id is that of the process, runs the event loop."""
    spent: dict[int, float] = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            spent[int(task)] = int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]) / 1e9
    return spent


def percentile(values: list[int], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def open_loop(ready: Ready, api: str, count: int, rate: float, seconds: float) -> dict[str, Any]:
    """Measure streams that do not end."""
    streams, tally = Streams(ready, api, count, ENDLESS), Tally()
    streams.open()
    _settle(streams)
    before, began = threads_s(ready["pid"]), time.monotonic()
    streams.read(seconds, tally)
    after, wall_s = threads_s(ready["pid"]), time.monotonic() - began
    streams.close()
    loop_s = after[ready["pid"]] - before[ready["pid"]]
    return {
        "kind": "open",
        "api": api,
        "streams": count,
        "rate": rate,
        "loop_us_per_token": round(loop_s / max(1, tally.tokens) * 1e6, 1),
        "loop_cores": round(loop_s / wall_s, 3),
        "tokens_per_s": round(tally.tokens / wall_s),
        "wanted_per_s": round(count * rate),
        "late_ms_p50": round(percentile(tally.late_us, 0.5) / 1000, 1),
        "late_ms_p99": round(percentile(tally.late_us, 0.99) / 1000, 1),
        "tokens_per_event": round(tally.tokens / max(1, tally.events), 2),
        "bytes_per_token": round(tally.size / max(1, tally.tokens)),
    }


def _settle(streams: Streams) -> None:
    """Read until the backlog from the start is gone: a thousand requests within a few seconds."""
    for _ in range(SETTLE_MAX):
        tally = Tally()
        streams.read(1.0, tally)
        if percentile(tally.late_us, 0.99) < SETTLED_MS * 1000:
            return


def closed_loop(ready: Ready, api: str, count: int, seconds: float) -> dict[str, Any]:
    """Measure consecutive answers of two lengths."""
    cost_us: dict[int, float] = {}
    for tokens in (SHORT, LONG):
        streams, tally = Streams(ready, api, count, tokens, again=True), Tally()
        streams.open()
        streams.read(1.0, Tally())
        before = threads_s(ready["pid"])[ready["pid"]]
        streams.read(seconds, tally)
        cost_us[tokens] = (threads_s(ready["pid"])[ready["pid"]] - before) / max(1, tally.ended) * 1e6
        streams.close()
        time.sleep(0.5)
    token_us = (cost_us[LONG] - cost_us[SHORT]) / (LONG - SHORT)
    return {
        "kind": "closed",
        "api": api,
        "streams": count,
        "loop_us_per_request": round(cost_us[SHORT] - SHORT * token_us),
        "loop_us_per_token": round(token_us, 1),
    }


@dataclass(frozen=True, slots=True)
class Spent:
    """By consecutive answers."""

    loop_s: float  # CPU
    wall_s: float
    tokens: float
    ended: int

    @property
    def token_us(self) -> float:
        return self.loop_s / max(1.0, self.tokens) * 1e6

    @property
    def request_us(self) -> float:
        return self.loop_s / max(1, self.ended) * 1e6


def spent(ready: Ready, api: str, seconds: float) -> Spent:
    streams, tally = Streams(ready, api, REAL_STREAMS[api], LONG, again=True), Tally()
    streams.open()
    streams.read(1.0, Tally())
    tokens, before_s, began = generated(ready), threads_s(ready["pid"])[ready["pid"]], time.monotonic()
    streams.read(seconds, tally)
    loop_s, wall_s = threads_s(ready["pid"])[ready["pid"]] - before_s, time.monotonic() - began
    tokens = generated(ready) - tokens
    streams.close()
    time.sleep(0.5)
    return Spent(loop_s, wall_s, tokens, tally.ended)


def real(ready: Ready, rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Measure consecutive answers of the bundled model, all surfaces in alternation."""
    costs: dict[str, list[Spent]] = {api: [] for api in APIS}
    for number in range(rounds):
        for api in APIS if number % 2 else APIS[::-1]:
            costs[api].append(spent(ready, api, seconds))
    for api in APIS:
        row = {"kind": "real", "api": api, "streams": REAL_STREAMS[api]}
        yield row | {"loop_us_per_token": round(statistics.median(each.token_us for each in costs[api]), 1)}
    pairs = zip(costs["stored"], costs["unstored"], strict=True)
    ratio = statistics.median(s.tokens / s.wall_s / (u.tokens / u.wall_s) for s, u in pairs)
    yield {"kind": "storing", "streams": REAL_STREAMS["stored"], "stored_to_unstored": round(ratio, 3)}


def floors(rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Measure a worker in alternation with bare servers that send the same."""
    with worker_at(0.0) as ready, tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "statements"
        with worker_at(0.0, "--record", str(record)) as recorder:
            begin, began = record.stat().st_size, time.monotonic()
            cost = spent(recorder, "stored", seconds)
            logins, statements = zip(*recorded(record, begin), strict=True)
            answers = cost.ended / cost.wall_s * (time.monotonic() - began)
            stored = {"login": logins[0], "statements": statements, "statements_per_answer": len(statements) / answers}
            for api in APIS:
                yield floor(Path(folder), ready, api, stored if api == "stored" else {}, rounds, seconds)


def floor(folder: Path, ready: Ready, api: str, stored: dict[str, Any], rounds: int, seconds: float) -> dict[str, Any]:
    """Microseconds a token of the worker and of the bare server, and of these, those of requests without tokens, and
    of the statements of stored answers. Medians."""
    found: dict[str, list[float]] = {"worker": [], "floor": [], "requests": [], "statements": []}
    sent = whole_answer(ready, api)
    for _ in range(rounds):
        cost = spent(ready, api, seconds)
        answers = Answers(sent, round(cost.tokens / cost.ended), cost.tokens / cost.wall_s / REAL_STREAMS[api])
        found["worker"].append(cost.token_us)
        whole = spent_bare(folder, answers, api, seconds).token_us
        short = spent_bare(folder, replace(answers, tokens=1), api, seconds).request_us
        found["requests"].append((short - whole) / (answers.tokens - 1))
        if stored:
            found["statements"].append(spent_bare(folder, replace(answers, **stored), api, seconds).token_us - whole)
            whole += found["statements"][-1]
        found["floor"].append(whole)
    return {"kind": "floor", "api": api, "streams": REAL_STREAMS[api]} | {
        f"{name}_us_per_token": round(statistics.median(costs), 1) for name, costs in found.items() if costs
    }


def whole_answer(ready: Ready, api: str) -> bytes:
    with socket.create_connection(("127.0.0.1", int(ready["url"].rsplit(":", 1)[1]))) as connection:
        connection.sendall(request_of(api, ready["api_key"], 0, LONG))
        sent = b""
        while not sent.endswith(b"0\r\n\r\n"):
            sent += connection.recv(RECEIVE_BYTES)
    return sent


def spent_bare(folder: Path, answers: Answers, api: str, seconds: float) -> Spent:
    (folder / "answers").write_bytes(pickle.dumps(answers))
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    with _process(["--bare", str(folder / "answers"), "--ready", str(ready)], ready) as told:
        return spent(told, api, seconds)


def generated(ready: Ready) -> float:
    """Tokens of the answers that have ended, by the worker's own count."""
    request = Request(f"{ready['url']}/metrics", headers={"Authorization": f"Bearer {ready['api_key']}"})
    with urlopen(request) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(GENERATED))


def beside(workers: Sequence[Ready], count: int, rounds: int, seconds: float) -> dict[str, Any]:
    """The event loop's cost per token with one worker alone, and with two at the same time, each with this many
    streams. This shows how many workers' work the two do; how long they wait for a CPU depends on the machine."""
    alone_us: list[float] = []
    both_us: list[float] = []
    for number in range(rounds):
        for loaded in (workers[:1], workers) if number % 2 else (workers, workers[:1]):
            (both_us if len(loaded) > 1 else alone_us).extend(_token_us(loaded, count, seconds))
    alone, both = statistics.median(alone_us), statistics.median(both_us)
    return {
        "kind": "workers",
        "api": "stored",
        "streams": count,
        "loop_us_per_token_alone": round(alone, 1),
        "loop_us_per_token_of_two": round(both, 1),
        "fan_out": round(len(workers) * alone / both, 2),
    }


def _token_us(workers: Sequence[Ready], count: int, seconds: float) -> list[float]:
    """Microseconds per token of each worker, while all of them have this many streams."""
    streams = [Streams(ready, "stored", count, ENDLESS) for ready in workers]
    for each in streams:
        each.open()
    tallies = [Tally() for _ in workers]
    with ThreadPoolExecutor(len(workers)) as readers:
        list(readers.map(lambda each: each.read(SETTLE_S, Tally()), streams))
        before = [threads_s(ready["pid"])[ready["pid"]] for ready in workers]
        list(readers.map(lambda each, tally: each.read(seconds, tally), streams, tallies))
        spent = [threads_s(ready["pid"])[ready["pid"]] - s for ready, s in zip(workers, before, strict=True)]
    for each in streams:
        each.close()
    time.sleep(0.5)
    return [s / max(1, tally.tokens) * 1e6 for s, tally in zip(spent, tallies, strict=True)]


@contextlib.contextmanager
def worker_at(rate: float, *options: str) -> Iterator[Ready]:
    with workers_at(rate, 1, *options) as (ready,):
        yield ready


@contextlib.contextmanager
def workers_at(rate: float, count: int, *options: str) -> Iterator[list[Ready]]:
    """Run workers that share a database."""
    with contextlib.ExitStack() as undo:
        folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="firsttoken-bench-", ignore_cleanup_errors=True))
        os.chmod(folder, 0o711)
        yield [undo.enter_context(_worker(folder, f"ready-{number}.json", rate, *options)) for number in range(count)]


@contextlib.contextmanager
def _worker(folder: str, name: str, rate: float, *options: str) -> Iterator[Ready]:
    ready = Path(folder) / name
    with _process(["--serve", folder, "--ready", str(ready), "--rate", str(rate), *options], ready) as told:
        yield told


@contextlib.contextmanager
def _process(options: list[str], ready: Path) -> Iterator[Ready]:
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.fanout", *options], stdout=subprocess.DEVNULL)
    try:
        began = time.monotonic()
        while not ready.exists():
            if process.poll() is not None or time.monotonic() - began > START_MAX_S:
                raise SystemExit("the worker did not start")
            time.sleep(0.1)
        time.sleep(0.5)
        yield json.loads(ready.read_text())
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def missed(row: dict[str, Any]) -> list[str]:
    """The goals that a row misses, in words: microseconds and counts only."""
    api, name = row.get("api", ""), f"{row['kind']} {row.get('api', '')} {row['streams']}"
    problems = []
    if row["kind"] == "open" and row["streams"] < MANY and row["loop_us_per_token"] > TOKEN_GOALS_US[api]:
        problems.append(f"{name}: {row['loop_us_per_token']} µs a token, not {TOKEN_GOALS_US[api]}")
    if row["kind"] == "open" and row["streams"] >= MANY and row["loop_cores"] > MANY_GOALS.get(api, 1.0):
        problems.append(f"{name}: {row['loop_cores']} of a core, not {MANY_GOALS[api]}")
    if row["kind"] == "closed" and row["loop_us_per_request"] > REQUEST_GOALS_US.get(api, float("inf")):
        problems.append(f"{name}: {row['loop_us_per_request']} µs a request, not {REQUEST_GOALS_US[api]}")
    if row["kind"] == "real" and row["loop_us_per_token"] > REAL_GOALS_US[api]:
        problems.append(f"{name}: {row['loop_us_per_token']} µs a token, not {REAL_GOALS_US[api]}")
    if row["kind"] == "storing" and row["stored_to_unstored"] < STORING_GOAL:
        problems.append(
            f"{name}: stored answers have {row['stored_to_unstored']} of the throughput, not {STORING_GOAL}"
        )
    if row["kind"] == "workers" and row["fan_out"] < FAN_OUT_GOAL:
        problems.append(f"{name}: two workers do the work of {row['fan_out']}, not of {FAN_OUT_GOAL}")
    return problems


def rows_of(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    apis, counts = args.api.split(","), [int(count) for count in args.streams.split(",")]
    if args.only in ("", "open"):
        with worker_at(args.rate) as ready:
            for count in counts:
                for api in apis:
                    yield open_loop(ready, api, count, args.rate, args.seconds)
                    time.sleep(1.0)
    if args.only in ("", "closed"):
        with worker_at(200.0) as ready:
            for api in apis:
                yield closed_loop(ready, api, 16, args.seconds)
    if args.only == "workers":
        with workers_at(args.rate, 2) as workers:
            for count in counts:
                yield beside(workers, count, args.rounds, args.seconds)
    if args.only == "floor":
        yield from floors(args.rounds, args.seconds)
    if args.only == "real":
        with worker_at(0.0) as ready:
            yield from real(ready, args.rounds, args.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fanout", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", choices=["", "open", "closed", "real", "floor", "workers"], help="one kind of load"
    )
    parser.add_argument("--api", default="chat,stored,unstored", help=f"comma-separated: {', '.join(APIS)}")
    parser.add_argument("--streams", default="64", help="streams per worker, comma-separated (default 64)")
    parser.add_argument("--rate", type=float, default=20.0, help="tokens per second of each stream (default 20)")
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of each measurement (default 6)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of `real` and `workers` (default 5)")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)  # the process of the worker itself: its home
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)  # the process of a bare server: its answers
    parser.add_argument("--ready", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)  # the statements of the worker, into this file
    args = parser.parse_args()
    if args.serve:
        run(args.serve, args.ready, args.rate, args.record)
        return 0
    if args.bare:
        serve_bare(args.bare, args.ready)
        return 0
    rows, problems = [], []
    for row in rows_of(args):
        rows.append(row)
        problems += missed(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if args.check and problems else 0


if __name__ == "__main__":
    sys.exit(main())
