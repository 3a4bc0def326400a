"""Faults under load: nothing that was acknowledged is lost, nothing stuck, made twice or told otherwise."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.chaos.__main__ import drill
from benchmarks.chaos.traffic import COME_BACK_S, GAP, PATIENCE_S, START_S_MAX, Books, Told, audit
from benchmarks.chaos.world import FAULTS, VANISH

Event = dict[str, Any]

ANSWER: Event = {"id": "resp_1", "status": "completed", "output": [{"content": [{"text": "Hello."}]}]}
BEGUN: Event = {"type": "response.created", "sequence_number": 0}
PIECE: Event = {"type": "response.output_text.delta", "sequence_number": 1, "delta": "Hello."}
END: Event = {"type": "response.completed", "sequence_number": 2, "response": ANSWER}
ALL = [BEGUN, PIECE, END]


def holds(report: dict[str, Any]) -> None:
    assert not any(report["broken"].values()), (report["broken"], report["examples"])
    assert all(row["injections"] for row in report["faults"].values()), report
    assert report["faults"].keys() == {*FAULTS, VANISH}
    assert report["attempts"] > report["requests"]  # the faults were felt
    assert report["completed"]


@pytest.mark.any_answer("whatever was answered has to stay")
@pytest.mark.timeout(300)
async def test_each_kind_of_fault_breaks_no_promise(home: Path) -> None:
    holds(await drill(list(FAULTS), len(FAULTS), clients=5, seed=1, folder=home, calm_s=(0.1, 0.4)))


@pytest.mark.long
@pytest.mark.any_answer("whatever was answered has to stay")
@pytest.mark.timeout(3600)
async def test_many_faults_break_no_promise(home: Path) -> None:
    holds(await drill(list(FAULTS), 30 * len(FAULTS), clients=12, seed=2, folder=home))


async def broken(
    told: Told, stored: Event | None = ANSWER, replayed: list[Event] = ALL, *, status: int = 200, log: str = ""
) -> set[str]:
    """The promises that a worker breaks which has these now."""

    async def answer(request: web.Request) -> web.Response:
        if "stream" in request.query:
            return web.Response(body=b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in replayed))
        return web.json_response(stored, status=200 if stored else 404)

    app = web.Application()
    app.router.add_get("/v1/responses/{id}", answer)
    books = Books([told])
    books.statuses[status] += 1
    async with TestServer(app) as server:
        verdict = await audit(str(server.make_url("/")), "key", books, log)
    return {name for name, count in verdict.broken.items() if count}


def told(*events: Event, response: Event | None = ANSWER, **changes: Any) -> Told:
    numbered = {event["sequence_number"]: event for event in events}
    return Told("key", 0.0, **{"ids": {"resp_1"}, "events": numbered, "response": response, **changes})


async def test_a_worker_that_keeps_its_promises_passes() -> None:
    assert await broken(told(*ALL)) == set()
    marked = {**END, "sequence_number": 9, GAP: {"after": 0, "reason": "the worker stopped"}}
    assert await broken(told(BEGUN, PIECE, response=ANSWER), replayed=[BEGUN, marked]) == set()


@pytest.mark.parametrize(
    ("stored", "replayed"),
    [(None, ALL), ({**ANSWER, "output": []}, ALL), ({**ANSWER, "status": "failed"}, ALL)],
    ids=["gone", "another text", "another status"],
)
async def test_what_was_acknowledged_and_is_not_there_is_lost(stored: Event | None, replayed: list[Event]) -> None:
    assert "lost" in await broken(told(*ALL), stored, replayed)


@pytest.mark.parametrize("response", [None, ANSWER])
async def test_what_has_no_end_is_stuck(response: Event | None) -> None:
    assert "stuck" in await broken(told(BEGUN, response=response), {**ANSWER, "status": "in_progress"})
    assert "stuck" in await broken(told(response=None, ids=set()))


async def test_an_answer_that_did_not_wait_for_its_client_is_given_up() -> None:
    cancelled = {**ANSWER, "status": "cancelled"}
    for away_s, promises in ((COME_BACK_S / 2, {"given_up"}), (COME_BACK_S * 2, set[str]())):
        asked = told(BEGUN, PIECE, response=None, heard=monotonic() - away_s)
        asked.hear()  # what it was told before it was given up
        asked.take(cancelled)
        assert await broken(asked, cancelled, [BEGUN, PIECE]) == promises


@pytest.mark.parametrize(
    "replayed",
    [
        [],
        [BEGUN, END],
        [BEGUN, PIECE, PIECE, END],
        [BEGUN, PIECE],
        [BEGUN, {**PIECE, "delta": "Bye."}, END],
        [END, *ALL],
    ],
    ids=["nothing", "a hole", "twice", "no end", "another text", "out of order"],
)
async def test_a_replay_that_is_not_what_was_told_is_found(replayed: list[Event]) -> None:
    assert await broken(told(*ALL), replayed=replayed) == {"replays"}


def test_a_client_is_patient_while_nobody_is_at_the_address() -> None:
    """A start takes minutes on a machine that is busy enough; what hangs at a worker that is there does not."""
    now = monotonic()
    asked, fault = Told("key", now - PATIENCE_S - 1), now - PATIENCE_S - 1
    assert Books(last_fault=fault).is_stuck(asked)
    assert not Books(last_fault=fault, last_away=now - 1).is_stuck(asked)
    assert not Books(last_fault=now - 1).is_stuck(asked)
    asked.began = now - START_S_MAX - 1
    assert Books(last_fault=now - START_S_MAX - 1, last_away=now).is_stuck(asked)


async def test_everything_else_that_may_not_happen_is_found() -> None:
    assert await broken(told(*ALL, ids={"resp_1", "resp_2"})) == {"duplicated"}
    assert await broken(told(*ALL, changed=1)) == {"changed"}
    assert await broken(told(*ALL), status=500) == {"failures"}
    assert await broken(told(*ALL), log="Traceback (most recent call last):\n  File\nOops: no\n") == {"tracebacks"}
