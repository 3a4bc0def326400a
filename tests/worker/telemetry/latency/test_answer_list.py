"""The list of answers over HTTP: filtered, searched, paged, and with questions for their own tenant alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from agents.store.responses import ResponseRecord
from migrations.pool import Database
from tests.agents.store.test_stores import record, save
from tests.pages.past import answer, remember, say
from tests.worker.harness import SECRET, Client, make_services, serving
from tests.worker.telemetry.latency.test_rollups import turn
from worker.auth.audit import Actor
from worker.auth.keys import Keys
from worker.auth.scope import Scope
from worker.cli.parser import parser
from worker.runs.record import TurnRecord
from worker.runs.running_store import RunningStore
from worker.telemetry.canaries import CanaryStore
from worker.telemetry.latency.answer_list import WHYS, Why, accepted_answers
from worker.telemetry.telemetry import Traces
from worker.telemetry.trial import Proposal, State

QUESTION = "How many screws fit into the blue crate?"


@dataclass(frozen=True)
class Past:
    client: Client
    headers: dict[str, str]
    turns: list[TurnRecord]

    async def ask(self, query: str = "", **headers: str) -> Any:
        async with self.client.get(f"/ops/api/traces{query}", headers=headers or self.headers) as answered:
            assert answered.status == 200
            return await answered.json()

    async def listed(self, query: str = "") -> list[int]:
        """The places of the answers among `turns`."""
        places = {turn.id: place for place, turn in enumerate(self.turns)}
        return [places[row["id"]] for row in (await self.ask(query))["data"]]


@pytest.fixture
async def past(database: Database, tenant_id: UUID) -> AsyncIterator[Past]:
    turns = [
        answer(tenant_id, age_s=10, number=1),
        answer(tenant_id, age_s=20, number=2, queue=900),
        replace(answer(tenant_id, age_s=30, number=8), status="failed", surface="voice", agent="support"),
    ]
    turns[0].trace.spans[6].attributes |= {"cached_tokens": 0, "new_tokens": 90}
    turns[2].trace.attributes["firsttoken.key"] = "key_7"
    await remember(Traces(database), tenant_id, *turns)
    _, key = await Keys(database, SECRET).create(tenant_id, "test", scopes=frozenset({Scope.CHAT}))
    async with serving(make_services(database)) as client:
        yield Past(client, {"Authorization": f"Bearer {key}"}, turns)


async def test_every_filter_finds_what_it_names(past: Past) -> None:
    turns = past.turns
    for query, expected in {
        "": [0, 1, 2],
        "?order=slowest": [1, 0, 2],
        "?order=first_token&limit=1": [1],
        "?status=late": [1],
        "?status=failed": [2],
        "?cache=miss": [0],
        "?cache=hit": [1, 2],
        "?cache=partial": [],
        "?slower_ms=500": [1],
        "?length=short": [0],
        "?length=medium": [1, 2],
        "?length=huge": [],
        "?q=key_7": [2],
        "?surface=voice&agent=support&model=demo-chat": [2],
        f"?q={turns[1].id[:9]}": [1],
        f"?q={turns[1].response_id}": [1],
        "?q=conv_0": [0, 1],
        "?q=conv_%25": [],
        "?window_s=15": [0],
        f"?start={turns[1].trace.started_at - 1}&end={turns[1].trace.started_at + 1}": [1],
    }.items():
        assert sorted(await past.listed(query)) == sorted(expected), query
    assert (await past.listed("?order=slowest"))[0] == 1


async def test_pages_follow_each_other_without_gaps(past: Past) -> None:
    first = await past.ask("?limit=2")
    assert first["has_more"]
    second = await past.ask(f"?limit=2&after={first['data'][-1]['id']}")
    assert not second["has_more"]
    assert [row["id"] for row in first["data"] + second["data"]] == [turn.id for turn in past.turns]


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("start=1", None, "invalid_value"),
        ("start=9&end=3", None, "invalid_value"),
        ("cache=warm", "cache", "invalid_value"),
        ("tenant=me", "tenant", "invalid_value"),
        ("slower_ms=nan", "slower_ms", "above_max_value"),
        ("q=" + "x" * 201, "q", "string_above_max_length"),
        ("sort=slow", "sort", "unknown_parameter"),
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused_as_in_a_body(
    past: Past, query: str, param: str | None, code: str
) -> None:
    async with past.client.get(f"/ops/api/traces?{query}", headers=past.headers) as answered:
        error = (await answered.json())["error"]
    assert (answered.status, error["param"], error["code"]) == (400, param, code)


async def test_questions_and_calls_are_told_to_who_may_ask_in_the_same_tenant(
    past: Past, database: Database, owner_dsn: str, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    owner, turn = await asyncpg.connect(owner_dsn), past.turns[0]
    await say(owner, turn, QUESTION, ("calculator", '{"expression": "6*7"}', "42"))
    await owner.close()
    told = (await past.ask())["data"][0]["question"]
    assert told == QUESTION
    trace = await past.ask(f"/{turn.id}")
    assert trace["question"] == QUESTION
    assert trace["calls"] == [{"name": "calculator", "arguments": '{"expression": "6*7"}', "output": "42"}]
    keys = Keys(database, SECRET)
    for tenant, scopes in ((other_tenant_id, {Scope.OPS, Scope.CHAT}), (tenant_id, {Scope.OPS})):
        _, key = await keys.create(tenant, "operator", scopes=frozenset(scopes))
        headers = {"Authorization": f"Bearer {key}"}
        assert (await past.ask(f"?q={turn.id}", **headers))["data"][0]["question"] is None
        seen = await past.ask(f"/{turn.id}", **headers)
        assert (seen["question"], seen["calls"], seen["tenant"]) == (None, [], str(tenant_id))


ESCALATED: dict[str, Any] = {"firsttoken.escalations": 1}
DECLINED: dict[str, Any] = {**ESCALATED, "firsttoken.declined": True}
KEPT: dict[str, Any] = {"firsttoken.escalations": 0}
ME = Actor("command", "tester")


class Answers:
    """Stores answers of one tenant with what is known of their turns."""

    def __init__(self, database: Database, tenant_id: UUID) -> None:
        self.database, self.tenant_id = database, tenant_id

    async def __call__(
        self, rating: str | None = None, after: ResponseRecord | None = None, **attributes: Any
    ) -> ResponseRecord:
        made = record("this", after=after)
        made = replace(made, body={**made.body, "metadata": {"firsttoken:rating": rating} if rating else None})
        await save(RunningStore(self.database), self.tenant_id, made)
        told = turn(self.tenant_id, response_id=made.id)
        told.trace.attributes |= attributes
        await Traces(self.database).write(self.tenant_id, [told])
        return made

    async def found(self, *why: Why) -> set[str]:
        names: Collection[Why] = why or WHYS
        return {answer.id for answer in await accepted_answers(self.database, self.tenant_id, names, 100)}


@pytest.fixture
def answers(database: Database, tenant_id: UUID) -> Answers:
    return Answers(database, tenant_id)


async def test_people_and_cascades_accept_and_a_thumb_down_is_a_veto(answers: Answers) -> None:
    up = await answers("up")
    large = await answers(None, **ESCALATED)
    await answers(None, **KEPT)
    await answers("down", **ESCALATED)
    await answers(None, **DECLINED)
    await answers("up", after=up)  # what stood before it is kept elsewhere
    assert await answers.found("up") == {up.id}
    assert await answers.found("escalated") == {large.id}
    assert await answers.found() == {up.id, large.id}


async def test_another_tenants_are_not_among_them(answers: Answers, database: Database, other_tenant_id: UUID) -> None:
    await answers("up")
    assert await Answers(database, other_tenant_id).found() == set()


async def test_the_winner_of_a_canary_is_accepted_also_when_it_was_ended(
    answers: Answers, database: Database, tenant_id: UUID
) -> None:
    store, arms = CanaryStore(database), {}
    for name in ("promoted", "ended", "rolled back", "running", "aborted"):
        canary = await store.start(Proposal(f"test-{uuid4()}", f"agent-{uuid4()}", "new", 0.5), ME, tenant_id)
        for arm in ("control", "treatment"):
            arms[name, arm] = (await answers(None, canary=canary.name, canary_arm=arm, canary_unit="0" * 16)).id
        ways = {
            "promoted": [State.PROMOTED],
            "ended": [State.PROMOTED, State.ABORTED],
            "rolled back": [State.ROLLED_BACK],
            "aborted": [State.ABORTED],
        }
        before = State.RUNNING
        for after in ways.get(name, []):
            assert await store.change(canary.name, before, after, "", ME, tenant_id)
            before = after
        if name in ("promoted", "running"):
            last = State.PROMOTED if name == "promoted" else State.RUNNING
            found = await answers.found("canary")
            assert await store.change(canary.name, last, State.ABORTED, "", ME, tenant_id)  # none is live afterwards
            assert (arms[name, "treatment"] in found) is (name == "promoted")
    assert await answers.found("canary") == {
        arms["promoted", "treatment"],
        arms["ended", "treatment"],
        arms["rolled back", "control"],
    }


@pytest.mark.parametrize("why", WHYS)
def test_the_command_takes_each_reason(why: Why) -> None:
    """It spells them out: importing them would have each command wait for a library."""
    assert parser().parse_args(["eval", "export", "--accepted", why]).why == [why]
