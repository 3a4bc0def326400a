"""Which stored answers were accepted, and by whom."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from agents.store.responses import ResponseRecord
from migrations.pool import Database
from tests.agents.store.test_stores import record, save
from tests.worker.latency.test_rollups import turn
from worker.auth.audit import Actor
from worker.canary.store import CanaryStore
from worker.canary.trial import Proposal, State
from worker.cli.parser import parser
from worker.latency.accepted_answers import WHYS, Why, accepted_answers
from worker.runs.running_store import RunningStore
from worker.traces import Traces

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
