"""After the drill: compares what the clients received with the state of the system."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.chaos.traffic import ENDED, TERMINAL, Books, Told, events_of

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
