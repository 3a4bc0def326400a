"""Clients that keep records: their requests, the responses, and how each request ended.

They behave like good clients: send an idempotency key, retry after refusals and lost connections, and resume a stream
where it broke. After the drill, what they received is compared with the state of the system.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import aiohttp

PATIENCE_S = 60.0  # a request that has not ended this long after the last fault, with a worker running, is stuck
COME_BACK_S = 30.0  # how long an answer with a key waits for its client: see worker/runs/disconnect.py
START_S_MAX = 300.0  # after this, it is stuck in any case; on a busy machine a worker may take minutes to start
RETRY_S = 0.25
VANISH_SHARE = 0.15
VANISH_MAX_S = 0.3
TOKENS = 24
TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})


@dataclass(slots=True)
class Told:
    """One request with one key, over all its attempts."""

    key: str
    began: float
    ids: set[str] = field(default_factory=set)  # of the responses received; more than one is a duplicate
    events: dict[int, dict[str, Any]] = field(default_factory=dict)  # by number, as first received
    changed: int = 0  # events that were received again with different content
    response: dict[str, Any] | None = None  # its final state
    attempts: int = 0
    last: str = ""  # how the last attempt ended
    heard: float = field(default_factory=monotonic)  # when its client last received something
    away_s: float = 0.0  # the longest time without receiving anything

    @property
    def id(self) -> str | None:
        return next(iter(self.ids), None)

    def take(self, response: dict[str, Any]) -> None:
        self.ids.add(response["id"])
        self.last = response["status"]
        if response["status"] in ENDED:
            self.response = response
        self.hear()

    def hear(self) -> None:
        now = monotonic()
        self.away_s, self.heard = max(self.away_s, now - self.heard), now

    @property
    def given_up(self) -> bool:
        """Whether it was cancelled although its client had not been away for long."""
        return self.response is not None and self.response["status"] == "cancelled" and self.away_s < COME_BACK_S

    def forget(self) -> None:
        """Drop a response that the worker no longer knows and that had not ended, to request it again with its key. The
        start of a response does not wait for the disk, so it is lost if the database crashes and the worker dies before
        it stores it again.
        """
        self.ids.clear()
        self.events.clear()


@dataclass(slots=True)
class Books:
    requests: list[Told] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    unadvised: int = 0  # refusals with 503 or 429 without Retry-After
    vanished: int = 0
    forgotten: int = 0  # started responses
    answered: asyncio.Event = field(default_factory=asyncio.Event)  # a request that began after `since`
    since: float = 0.0
    last_fault: float = 0.0
    last_away: float = 0.0  # when a client last could not connect

    def is_stuck(self, told: Told) -> bool:
        now = monotonic()
        return (
            now - max(told.began, self.last_fault, self.last_away) > PATIENCE_S
            or now - max(told.began, self.last_fault) > START_S_MAX
        )


class Client:
    """One client, with one request at a time."""

    def __init__(self, url: str, key: str, books: Books, dice: random.Random) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}
        self._books = books
        self._dice = dice

    async def run(self, until: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S, sock_read=15.0)
        async with aiohttp.ClientSession(
            self._url, headers=self._headers, timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)
        ) as self._session:
            while not until.is_set():
                await self._ask()

    async def _ask(self) -> None:
        told = Told(secrets.token_hex(12), monotonic())
        self._books.requests.append(told)
        style = self._dice.choice(("streamed", "streamed", "whole", "background"))
        body = {"input": f"Count to {self._dice.randrange(1000)}.", "max_output_tokens": TOKENS, "temperature": 0}
        body |= {"stream": style == "streamed", "background": style == "background"}
        while told.response is None and not self._books.is_stuck(told):
            told.attempts += 1
            try:
                await self._attempt(told, body)
            except (aiohttp.ClientError, TimeoutError, ConnectionError, json.JSONDecodeError) as error:
                told.last = repr(error)
                if isinstance(error, aiohttp.ClientConnectorError):
                    self._books.last_away = monotonic()
            if told.response is None:
                await asyncio.sleep(RETRY_S)
        if told.response is not None and told.began > self._books.since:
            self._books.answered.set()

    async def _attempt(self, told: Told, body: dict[str, Any]) -> None:
        if told.attempts == 1 and self._dice.random() < VANISH_SHARE:
            self._books.vanished += 1
            try:
                async with asyncio.timeout(self._dice.uniform(0, VANISH_MAX_S)):
                    await self._send(told, body)
            except TimeoutError:
                return
        elif told.id is None:
            await self._send(told, body)
        elif body["stream"]:
            after = max(told.events, default=-1)
            await self._read_stream("GET", f"/v1/responses/{told.id}?stream=true&starting_after={after}", told)
        else:
            await self._poll(told)

    async def _send(self, told: Told, body: dict[str, Any]) -> None:
        if body["stream"]:
            await self._read_stream("POST", "/v1/responses", told, body)
            return
        async with self._session.post("/v1/responses", json=body, headers={"Idempotency-Key": told.key}) as answer:
            if await self._accepted(told, answer):
                told.take(await answer.json())

    async def _poll(self, told: Told) -> None:
        async with self._session.get(f"/v1/responses/{told.id}") as answer:
            if await self._accepted(told, answer):
                told.take(await answer.json())

    async def _read_stream(self, method: str, path: str, told: Told, body: dict[str, Any] | None = None) -> None:
        headers = {"Idempotency-Key": told.key} if body else {}
        async with self._session.request(method, path, json=body, headers=headers) as answer:
            if not await self._accepted(told, answer):
                return
            async for event in events_of(answer):
                told.hear()
                number = event.get("sequence_number", -1)
                if told.events.setdefault(number, event) != event:
                    told.changed += 1
                if "response" in event:
                    told.ids.add(event["response"]["id"])
                if event["type"] in TERMINAL:
                    told.response = event["response"]
            told.last = "the stream ended without a terminal event"
        if told.response is None and told.id is not None:
            await self._poll(told)  # one that was cancelled has no terminal event

    async def _accepted(self, told: Told, answer: aiohttp.ClientResponse) -> bool:
        self._books.statuses[answer.status] += 1
        if answer.status != 200:
            told.last = f"{answer.status} {await answer.text()}"
        if answer.status == 404:
            told.forget()
            self._books.forgotten += 1
        if answer.status in (429, 503) and "Retry-After" not in answer.headers:
            self._books.unadvised += 1
        return answer.status == 200


async def events_of(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream. Raises ClientError when the connection is lost."""
    async for line in answer.content:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


GAP = "firsttoken:gap"  # marks a terminal event: events before it were sent, but not stored when their worker died
AT_ONCE = 8
EXAMPLES_MAX = 12
TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ |+].*\n|\n)*(.*)", re.MULTILINE)


@dataclass(slots=True)
class Verdict:
    """Broken promises by kind, with some examples in words."""

    broken: dict[str, int]
    examples: list[str] = field(default_factory=list)

    def add(self, kind: str, example: str) -> None:
        self.broken[kind] += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"{kind}: {example}")


async def audit(url: str, key: str, books: Books, log: str) -> Verdict:
    """Fetch every response again; nothing may still be running. `log` is the worker's log.

    `lost`: acknowledged, but missing now or with another text. `stuck`: a request that never ended, or a response that
    is still reported as in progress. `duplicated`: a second generation for one key. `changed`: an event sent twice with
    different contents. `replays`: missing or repeated event numbers, or no terminal event at the end. `failures`: 5xx
    other than 503. `unadvised`: refusals without Retry-After. `given_up`: cancelled although the client was connected.
    """
    verdict = Verdict(
        {
            "lost": 0,
            "stuck": 0,
            "duplicated": sum(max(0, len(told.ids) - 1) for told in books.requests),
            "changed": sum(told.changed for told in books.requests),
            "replays": 0,
            "failures": sum(count for status, count in books.statuses.items() if status >= 500 and status != 503),
            "unadvised": books.unadvised,
            "given_up": 0,
            "tracebacks": 0,
        }
    )
    for traceback in TRACEBACK.finditer(log):
        verdict.add("tracebacks", traceback[0])
    places = asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {key}"}) as session:

        async def look(told: Told) -> None:
            async with places:
                await _compare(session, told, verdict)

        await asyncio.gather(*(look(told) for told in books.requests))
    return verdict


async def _compare(session: aiohttp.ClientSession, told: Told, verdict: Verdict) -> None:
    if told.response is None:
        verdict.add("stuck", f"the request of {told.id} has not ended after {told.attempts} attempts: {told.last}")
    if told.given_up:
        verdict.add("given_up", f"{told.id} with {len(told.events)} events, away for {told.away_s:.1f} s at most")
    if told.id is None:
        return
    async with session.get(f"/v1/responses/{told.id}") as answer:
        stored = await answer.json()
        found = answer.status == 200
    if told.response is not None and (not found or _text(stored) != _text(told.response)):
        verdict.add("lost", f"{_text(told.response)} is {_text(stored) if found else stored} now")
    if found and stored["status"] not in ENDED:
        verdict.add("stuck", f"{told.id} is {stored['status']}")
    if found and told.response is not None:
        async with session.get(f"/v1/responses/{told.id}?stream=true") as answer:
            replayed = [event async for event in events_of(answer)] if answer.status == 200 else []
            if problem := _problem(replayed, told) if replayed else f"status {answer.status}, no events":
                verdict.add("replays", f"{told.id} ({stored['status']}): {problem}")


def _text(response: dict[str, Any]) -> tuple[str, str]:
    parts = [part for item in response["output"] for part in item.get("content") or () if "text" in part]
    return response["status"], "".join(part["text"] for part in parts)


def _problem(replayed: list[dict[str, Any]], told: Told) -> str | None:
    """What is wrong with a replay; None if it is correct. Each number must come once and in order, apart from marked
    gaps, and with the same content. The last event, and no other, must be terminal; only a cancelled response has no
    terminal event."""
    expected = 0
    for event in replayed:
        number = event["sequence_number"]
        if number != expected and not (GAP in event and number > expected):
            return f"number {number} where {expected} follows"
        if told.events.get(number, event) != event:
            return f"event {number} was sent as {told.events[number]['type']} and is {event['type']} now"
        expected = number + 1
    ends = [event["type"] in TERMINAL for event in replayed].count(True)
    cancelled = told.response is not None and told.response["status"] == "cancelled"
    if ends != (not cancelled) or (ends and replayed[-1]["type"] not in TERMINAL):
        return f"{ends} terminal events among {len(replayed)}"
    return None
