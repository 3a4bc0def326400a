"""Canaries at a worker: the real edge, agent loop and Postgres, with a model that says what it is told."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import AsyncMock
from uuid import UUID, uuid4

import pytest

from agents.definition import AgentRegistry, Definition, SearchTable
from agents.message import Message
from agents.turn import Arm
from inference.trace import Trace
from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, post, services_with
from tests.worker.harness import SECRET, Client, serving
from worker.auth.audit import Actor, AuditLog
from worker.auth.keys import Keys
from worker.auth.scope import ALL, Scope
from worker.lifecycle.supervisor import Supervisor
from worker.runs.record import TurnRecord
from worker.services import Services
from worker.telemetry.canaries import ANSWERS_MAX, AlreadyExists, Canaries, CanaryStore, first_question, note_arm
from worker.telemetry.trial import KNOWN_BY_CHARS, Answer, Canary, Evidence, Proposal, State, Vote

ME = Actor("command", "tester")
USUAL = Definition(instructions="You are as always.")
NEW = Definition(instructions="You are new.")
BROKEN = Definition(search=SearchTable(stores=["a store that is not there"]))
ROSTER = AgentRegistry({"usual": USUAL, "new": NEW, "broken": BROKEN})


@pytest.fixture
def store(database: Database) -> CanaryStore:
    return CanaryStore(database)


@pytest.fixture
def start(store: CanaryStore, tenant_id: UUID) -> Callable[..., object]:
    """Starts a canary of a name of its own."""

    async def start(treatment: str = "new", share: float = 0.5, agent: str = "usual") -> Canary:
        return await store.start(Proposal(f"test-{uuid4()}", agent, treatment, share), ME, tenant_id)

    return start


@pytest.fixture
async def end(store: CanaryStore, tenant_id: UUID) -> AsyncIterator[None]:
    """No canary of a test is live after it."""
    yield
    for canary in await store.live():
        await store.change(canary.name, canary.state, State.ABORTED, "", ME, tenant_id)


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(["Fine."], name=MODEL)


@pytest.fixture
def services(database: Database, model: ScriptedModel, store: CanaryStore, tenant_id: UUID, end: None) -> Services:
    async def auditor() -> UUID:
        return tenant_id

    return replace(services_with(database, model), agent_registry=ROSTER, canaries=Canaries(store, auditor))


@pytest.fixture
async def client(database: Database, services: Services) -> AsyncIterator[Client]:
    keys = Keys(database, SECRET)
    async with serving(services) as client:
        tenant = f"test-{uuid4()}"
        key = (await keys.create(await keys.tenant(tenant), "test"))[1]
        client.session.headers.update({"Authorization": f"Bearer {key}", "X-Tenant": tenant})
        yield client


async def chat(client: Client, *said: str) -> int:
    """The status of a completion; `said` in turns by the user and the assistant."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    answer = await client.post("/v1/chat/completions", json={"model": "agent/usual", "messages": messages})
    return answer.status


def is_treated(model: ScriptedModel) -> bool:
    """Whether the treatment wrote the last prompt."""
    assert ("You are new." in model.prompts[-1]) is not ("You are as always." in model.prompts[-1])
    return "You are new." in model.prompts[-1]


async def test_about_the_share_is_treated_and_what_became_of_it_is_stored(
    client: Client, services: Services, store: CanaryStore, model: ScriptedModel, start: Callable[..., object]
) -> None:
    canary: Canary = await start(share=0.3)  # type: ignore[misc]
    await services.canaries.sync()
    treated = []
    for number in range(40):
        assert await chat(client, f"Question {number}") == 200
        treated.append(is_treated(model))
    assert 2 <= sum(treated) <= 24  # within four standard deviations
    await services.canaries.sync()
    answers = (await store.evidence(canary)).answers
    assert [answer.treated for answer in answers] == treated
    assert all(not answer.failed and answer.ttft_ms and answer.tokens for answer in answers)


async def test_a_conversation_stays_with_its_agent_however_it_is_continued(
    client: Client, services: Services, store: CanaryStore, model: ScriptedModel, start: Callable[..., object]
) -> None:
    canary: Canary = await start()  # type: ignore[misc]
    await services.canaries.sync()
    kinds = set()
    for number in range(8):
        await chat(client, f"Question {number}")
        first = is_treated(model)
        await chat(client, f"Question {number}", "Fine.", "And then?")
        assert is_treated(model) is first
        kinds.add(first)
        previous = await post(client, "/v1/responses", {"model": "agent/usual", "input": f"Question {number}"})
        first = is_treated(model)
        then = {"model": "agent/usual", "input": "And then?", "previous_response_id": previous["id"]}
        await post(client, "/v1/responses", then)
        assert is_treated(model) is first
        kinds.add(first)
        conversation = await post(client, "/v1/conversations", {})
        asked = {"model": "agent/usual", "input": "And now?", "conversation": conversation["id"]}
        for turn in range(2):
            await post(client, "/v1/responses", asked)
            first, before = is_treated(model), first
            assert turn == 0 or first is before
        kinds.add(first)
    assert kinds == {True, False}
    await services.canaries.sync()
    assert len((await store.evidence(canary)).answers) == 24  # later turns of a conversation do not count


async def test_thumbs_and_declined_answers_are_stored_with_the_arm_of_their_conversation(
    client: Client, services: Services, store: CanaryStore, model: ScriptedModel, start: Callable[..., object]
) -> None:
    canary: Canary = await start()  # type: ignore[misc]
    await services.canaries.sync()
    treated = []
    for number, rating in enumerate(("down", "up", None, "down")):
        body = {"model": "agent/usual", "input": f"Question {number}"}
        made = await post(client, "/v1/responses", body)
        treated.append(is_treated(model))
        if rating is not None:
            await post(client, f"/v1/responses/{made['id']}/feedback", {"rating": rating})
            await post(client, f"/v1/responses/{made['id']}/feedback", {"rating": "up"})  # a vote counts once
    await services.canaries.sync()
    evidence = await store.evidence(canary)
    assert [(vote.treated, vote.harm) for vote in evidence.votes] == [
        (treated[0], 1.0),
        (treated[1], 0.0),
        (treated[3], 1.0),
    ]
    assert [answer.declined for answer in evidence.answers] == [False] * 4


async def test_answers_that_could_not_be_stored_are_stored_later_and_none_that_came_meanwhile_is_lost(
    store: CanaryStore, start: Callable[..., object], tenant_id: UUID, end: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary: Canary = await start()  # type: ignore[misc]
    canaries = Canaries(store, AsyncMock())
    await canaries.sync()
    note = partial(record_of, canary, tenant_id)

    async def away(answers: object) -> None:
        canaries.note(note("second"))  # it ends while the others are being stored
        raise ConnectionError

    canaries.note(note("first"))
    monkeypatch.setattr(canaries, "_judge", AsyncMock())
    with monkeypatch.context() as patch:
        patch.setattr(store, "add", away)
        with pytest.raises(ConnectionError):
            await canaries.sync()
    await canaries.sync()
    assert [answer.tokens for answer in (await store.evidence(canary)).answers] == [5, 6]


async def test_what_became_of_the_last_answers_is_stored_when_the_worker_stops(
    store: CanaryStore, start: Callable[..., object], tenant_id: UUID, end: None
) -> None:
    canary: Canary = await start()  # type: ignore[misc]
    canaries = Canaries(store, AsyncMock(return_value=tenant_id))
    await canaries.sync()
    canaries.start(Supervisor())
    canaries.note(record_of(canary, tenant_id, "last"))
    await canaries.close()
    assert [answer.tokens for answer in (await store.evidence(canary)).answers] == [4]


async def test_each_of_several_canaries_is_judged_as_seldom_as_one_alone(
    store: CanaryStore, start: Callable[..., object], tenant_id: UUID, end: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one: Canary = await start()  # type: ignore[misc]
    two: Canary = await start(agent="")  # type: ignore[misc]
    canaries, read = Canaries(store, AsyncMock(return_value=tenant_id)), list[str]()

    async def evidence(canary: Canary) -> Evidence:
        read.append(canary.name)
        return Evidence([Answer(True, False, None, None, None, 1)] * ANSWERS_MAX)

    monkeypatch.setattr(store, "evidence", evidence)
    await canaries.sync()
    for number in range(3):
        for canary in (one, two):
            canaries.note(record_of(canary, tenant_id, f"{canary.name} {number}"))
        await canaries.sync()
    assert sorted(read) == sorted([one.name, two.name])


def record_of(canary: Canary, tenant_id: UUID, conversation: str) -> TurnRecord:
    """As many tokens as the name of the conversation has letters."""
    trace = Trace()
    note_arm(trace, canary.arm(tenant_id, conversation))
    trace.add("decode", 0, 1, tokens=len(conversation))
    return TurnRecord(trace, tenant_id, "completed", "chat", MODEL)


async def test_a_model_is_asked_about_as_many_answers_of_both_kinds_and_once_about_each(
    client: Client, services: Services, store: CanaryStore, model: ScriptedModel, start: Callable[..., object]
) -> None:
    canary: Canary = await start()  # type: ignore[misc]
    await services.canaries.sync()
    kinds = []
    for number in range(12):
        await post(client, "/v1/responses", {"model": "agent/usual", "input": f"Question {number}"})
        kinds.append(is_treated(model))
    assert set(kinds) == {True, False}
    await services.canaries.sync()
    await services.telemetry.flush()
    tenant = await services.authenticator.keys.known_tenant(client.session.headers["X-Tenant"])
    assert tenant is not None
    found = await store.ungraded(tenant, canary, 2)
    assert len(found) == 2 and all(answer.body["output"] for _, answer in found)
    await store.vote([(canary.id, unit, Vote(False, "graded", 1.0)) for unit, _ in found])
    assert sorted(vote.treated for vote in (await store.evidence(canary)).votes) == [False, True]
    left = await store.ungraded(tenant, canary, 100)
    assert len(left) == 10 and not {unit for unit, _ in left} & {unit for unit, _ in found}


async def test_a_treatment_that_fails_is_rolled_back_by_itself_and_noted(
    client: Client,
    services: Services,
    store: CanaryStore,
    database: Database,
    tenant_id: UUID,
    start: Callable[..., object],
) -> None:
    canary: Canary = await start("broken")  # type: ignore[misc]
    await services.canaries.sync()
    failures = asked = 0
    while any(live.name == canary.name for live in await store.live()):
        asked += 1
        assert asked < 100, "it goes on failing"
        failures += await chat(client, f"Question {asked}") != 200
        await services.canaries.sync()
    assert failures <= 60  # 20 pairs are enough; by chance one arm gets three times what the other gets once in 10^5
    (after,) = [each for each in await store.all() if each.name == canary.name]
    assert after.state is State.ROLLED_BACK and "failed is worse by more than 0.02" in after.reason
    [noted, *_] = await AuditLog(database).list(tenant_id, limit=5)
    assert (noted.act, noted.object, noted.actor.via) == ("canary.changed", canary.name, "worker")
    await services.canaries.sync()
    assert [await chat(client, f"Later {number}") for number in range(8)] == [200] * 8


async def test_a_promoted_treatment_answers_everybody_until_it_is_ended(
    client: Client,
    services: Services,
    store: CanaryStore,
    model: ScriptedModel,
    tenant_id: UUID,
    start: Callable[..., object],
) -> None:
    canary: Canary = await start(share=0.01)  # type: ignore[misc]
    for state, treated in ((State.PROMOTED, True), (State.ABORTED, False)):
        before = State.RUNNING if treated else State.PROMOTED
        assert await store.change(canary.name, before, state, "", ME, tenant_id)
        assert not await store.change(canary.name, before, state, "", ME, tenant_id)
        await services.canaries.sync()
        for number in range(5):
            await chat(client, f"Question {number}")
            assert is_treated(model) is treated


async def test_a_worker_without_the_treatment_takes_no_part_and_says_so(
    client: Client,
    services: Services,
    store: CanaryStore,
    model: ScriptedModel,
    start: Callable[..., object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    canary: Canary = await start("of another file", share=0.9)  # type: ignore[misc]
    await services.canaries.sync()
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            await chat(client, f"Question {number}")
            assert not is_treated(model)
    assert caplog.text.count("this worker has no agent of another file") == 1
    await services.canaries.sync()
    assert list((await store.evidence(canary)).answers) == []


async def test_an_agent_has_one_canary_at_a_time_and_a_canary_a_name_of_its_own(
    start: Callable[..., object], store: CanaryStore, tenant_id: UUID, end: None
) -> None:
    first: Canary = await start()  # type: ignore[misc]
    with pytest.raises(AlreadyExists, match="agent has a canary"):
        await start()  # type: ignore[misc]
    begin = partial(store.start, Proposal(first.name, "another", "new", 0.5), ME, tenant_id)
    with pytest.raises(AlreadyExists, match="name was used"):
        await begin()


async def test_answers_of_a_canary_have_a_limit(
    store: CanaryStore, start: Callable[..., object], owner_dsn: str, end: None
) -> None:
    canary: Canary = await start()  # type: ignore[misc]
    answer = Answer(True, False, None, None, None, 1)
    await store.add((canary.id, f"{number:016x}", answer) for number in range(ANSWERS_MAX + 5))
    await store.add([(canary.id, "f" * 16, answer)])
    assert len((await store.evidence(canary)).answers) == ANSWERS_MAX


def test_of_a_long_first_question_the_beginning_counts() -> None:
    canary = Canary(uuid4(), "a", "", "new", 0.5, {}, State.RUNNING)
    begins, tenant = "x" * KNOWN_BY_CHARS, uuid4()

    def arm(question: str) -> Arm:
        return canary.arm(tenant, first_question([Message("user", question)]))

    assert arm(begins + "1") == arm(begins + "2") != arm(begins[1:])


def test_arms_of_different_canaries_do_not_go_together() -> None:
    def canary(share: float = 0.5) -> Canary:
        return Canary(uuid4(), "a", "", "new", share, {}, State.RUNNING)

    tenant, one, other = uuid4(), canary(), canary()
    both = [(one.arm(tenant, str(n)).treated, other.arm(tenant, str(n)).treated) for n in range(2000)]
    assert 0.2 < sum(first and second for first, second in both) / 2000 < 0.3
    assert one.arm(tenant, "1") == one.arm(tenant, "1") != one.arm(uuid4(), "1")


async def operator_of(database: Database, tenant_id: UUID, *scopes: Scope) -> dict[str, str]:
    key = (await Keys(database, SECRET).create(tenant_id, "operator", scopes=frozenset(scopes)))[1]
    return {"Authorization": f"Bearer {key}"}


async def test_an_operator_starts_promotes_and_ends_one_over_the_network_and_this_worker_follows_at_once(
    client: Client, database: Database, services: Services, model: ScriptedModel, tenant_id: UUID
) -> None:
    headers, name = await operator_of(database, tenant_id, *ALL), f"test-{uuid4()}"
    told = {"name": name, "agent": "usual", "treatment": "new", "share": 0.5}
    begun = await client.post("/ops/api/canaries", json=told, headers=headers)
    assert begun.status == 200, await begun.text()
    assert (await begun.json())["state"] == "running"
    assert (await client.post("/ops/api/canaries", json=told, headers=headers)).status == 409
    for state, status, treated in (("promoted", 200, True), ("promoted", 409, True), ("aborted", 200, False)):
        decided = await client.post(f"/ops/api/canaries/{name}", json={"state": state}, headers=headers)
        assert decided.status == status, await decided.text()
        assert await chat(client, f"After {state}") == 200
        assert is_treated(model) is treated
    acts = [each.act for each in await AuditLog(database).list(tenant_id, limit=10) if each.object == name]
    assert acts == ["canary.changed", "canary.changed", "canary.started"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"treatment": "nobody"}, "treatment"),
        ({"treatment": "usual"}, "treatment"),
        ({"agent": "nobody"}, "agent"),
        ({"share": 1}, "share"),
        ({"name": "a/b"}, "name"),
        ({"margins": {"joy": 0.1}}, "margins"),
        ({"more": 1}, "more"),
    ],
)
async def test_what_cannot_be_tried_is_refused_by_its_field(
    client: Client, database: Database, tenant_id: UUID, change: dict[str, Any], param: str
) -> None:
    headers = await operator_of(database, tenant_id, *ALL)
    told = {"name": "brief-1", "agent": "usual", "treatment": "new", **change}
    refused = await client.post("/ops/api/canaries", json=told, headers=headers)
    assert (refused.status, (await refused.json())["error"]["param"]) == (400, param)


@pytest.mark.parametrize("scope", [Scope.CHAT, Scope.OPS, Scope.ADMIN])
async def test_who_only_watches_or_only_administers_decides_nothing(
    client: Client, database: Database, tenant_id: UUID, scope: Scope
) -> None:
    headers = await operator_of(database, tenant_id, scope)
    for path, body in (("", {"name": "a", "treatment": "new"}), ("/a", {"state": "aborted"})):
        refused = await client.post(f"/ops/api/canaries{path}", json=body, headers=headers)
        assert refused.status == 403, await refused.text()


async def test_one_that_is_not_there_cannot_be_decided(client: Client, database: Database, tenant_id: UUID) -> None:
    headers = await operator_of(database, tenant_id, *ALL)
    for path in ("nobody", "..%2f"):
        refused = await client.post(f"/ops/api/canaries/{path}", json={"state": "aborted"}, headers=headers)
        assert refused.status == 404
