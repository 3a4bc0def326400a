"""Clients that keep records: their requests, the responses, and how each request ended.

They behave like good clients: send an idempotency key, retry after refusals and lost connections, and resume a stream
where it broke.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import aiohttp

PATIENCE_S = 60.0  # a request that has not ended this long after the last fault, with a worker running, is stuck
COME_BACK_S = 30.0  # how long an answer with a key waits for its client: see worker/runs/idempotency.py
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
