"""What is said to a running response: that ends at a safe place and keeps what it has, and its successor answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import ClientWebSocketResponse

from agents.agent import Agent
from agents.errors import TurnOver
from agents.message import new_id
from agents.store import ResponseRecord
from agents.tool import tool
from agents.toolbox import Toolbox
from inference.generation import Delta
from migrations.pool import CommitUnknown, Database
from tests.agents.turns import user
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, StallingModel, answering, events_of, get, post, replay, services_with
from tests.worker.harness import SECRET, Client, serving
from tests.worker.runs.test_going_on import PIECE, TEXT, pair
from tests.worker.sharing import colleagues, response_id_of, signed_in
from worker.auth.keys import Keys
from worker.config import Config
from worker.runs import manager
from worker.runs.continuation import Batch
from worker.runs.presence import STEER, Presence
from worker.runs.run import Run
from worker.runs.running_store import OwnedResponse, RunningStore
from worker.runs.steering_store import SaidMeanwhile, SteeringStore
from worker.wire.limits import SAID_MAX, TEXT_CHARS_MAX

URL = "/v1/responses"
HALF = "Half an answer,"
STREAM = {"input": "Tell me.", "stream": True}
NOBODY_TAKES = Config(background=0)
LESS = "Shorter, please."
DOUBLE = '<tool_call>\n{"name": "double", "arguments": {"x": 4}}\n</tool_call>'
CALLS_MINE = 'Hm. <tool_call>\n{"name": "mine", "arguments": {}}\n</tool_call>'
MINE = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}


class Talk(StallingModel):
    """Its first answer stands still until it is ended; the later ones do not."""

    def generate(self, *args: Any, **options: Any) -> Any:
        generation = super().generate(*args, **options)
        if len(self.running) > 1:
            self.running[-1].released.set()
        return generation


class CallsFirst(StallingModel):
    """Calls a tool, and stands still in the answer that follows."""

    def generate(self, *args: Any, **options: Any) -> Any:
        self.replies = [HALF] if self.running else self.replies
        generation = super().generate(*args, **options)
        if len(self.running) != 2:
            self.running[-1].released.set()
        return generation


def talk() -> Talk:
    return Talk([HALF], name=MODEL)


async def begun(client: Client, **more: Any) -> tuple[str, Any, bytes]:
    answer = await client.post(URL, json={**STREAM, **more})
    beginning = await answer.content.readuntil(b"er,")
    return response_id_of(beginning), answer, beginning


async def ended(client: Client, id: str) -> dict[str, Any]:
    await replay(client, id)
    response: dict[str, Any] = await get(client, f"{URL}/{id}")
    return response


async def test_the_answer_so_far_is_kept_and_another_goes_on_with_what_was_said(database: Database) -> None:
    model = talk()
    async with answering(database, model=model) as client:
        id, answer, beginning = await begun(client, instructions="Be kind.", temperature=0.5)
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        assert (told["object"], told["previous_response_id"]) == ("response.steer", id)
        events = events_of((beginning + await answer.read()).decode())
        accepted = next(event for event in events if event["type"] == "response.steer.accepted")
        assert accepted["steer"] == {"id": told["id"], "previous_response_id": id}
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "response.incomplete"
        before, after = await get(client, f"{URL}/{id}"), await ended(client, told["response"])
        items = (await get(client, f"{URL}/{after['id']}/input_items"))["data"]
    assert before["incomplete_details"]["reason"] == "steered"
    assert before["output"][0]["content"][0]["text"] == HALF and before["output"][0]["status"] == "incomplete"
    assert before["firsttoken_successor"] == after["id"] == events[-1]["response"]["firsttoken_successor"]
    assert (after["status"], after["previous_response_id"], after["temperature"]) == ("completed", id, 0.5)
    assert [item["content"][0]["text"] for item in items] == [LESS]
    beginning_of_prompt, said = model.prompts[1].split(HALF)
    assert "Be kind." in beginning_of_prompt and "Tell me." in beginning_of_prompt and LESS in said


async def test_an_answer_that_has_not_begun_leaves_nothing(database: Database) -> None:
    model = Talk([""], name=MODEL)
    async with answering(database, model=model) as client, client.post(URL, json=STREAM) as answer:
        id = response_id_of(await answer.content.readuntil(b"in_progress"))
        await model.started.wait()
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        await answer.read()
        before = await get(client, f"{URL}/{id}")
        await ended(client, told["response"])
    assert (before["status"], before["output"]) == ("incomplete", [])
    assert "Tell me." in model.prompts[1] and LESS in model.prompts[1]


async def test_a_conversation_has_all_of_it_in_order_and_what_is_said_at_once_is_answered_at_once(
    database: Database,
) -> None:
    model = talk()
    async with answering(database, model=model) as client:
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        id, answer, _ = await begun(client, conversation=conversation)
        said = [{"role": "user", "content": [{"type": "input_text", "text": text}]} for text in (LESS, "In French.")]
        told = await asyncio.gather(*(post(client, f"{URL}/{id}/steer", {"input": [each]}, 202) for each in said))
        assert len({each["response"] for each in told}) == 1 and len({each["id"] for each in told}) == 2
        await answer.read()
        await ended(client, told[0]["response"])
        items = (await get(client, f"/v1/conversations/{conversation}/items?order=asc"))["data"]
    texts = [item["content"][0]["text"] for item in items]
    assert (texts[:2], set(texts[2:4]), texts[4:]) == (["Tell me.", HALF], {LESS, "In French."}, [HALF])


@dataclass
class Clock:
    """A tool that takes its time, and what became of it."""

    began: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)


CALL = '<tool_call>\n{"name": "wait_long", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize("stop_tools", [False, True])
async def test_a_tool_that_runs_is_waited_for_unless_it_is_to_be_stopped(database: Database, stop_tools: bool) -> None:
    clock = Clock()

    @tool
    async def wait_long() -> str:
        """Takes its time."""
        clock.began.set()
        await clock.ready.wait()
        return "It is done."

    model = ScriptedModel([CALL, "I see."], name=MODEL)
    services = services_with(database, model)
    services = replace(services, agent=Agent(model, None, Toolbox([wait_long])))
    async with signed_in(database, services) as client:
        answer = await client.post(URL, json={**STREAM, "tools": [{"type": "firsttoken:wait_long"}]})
        id = response_id_of(await answer.content.readuntil(b"function_call"))
        await clock.began.wait()
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS, "stop_tools": stop_tools}, 202)
        if not stop_tools:
            assert (await get(client, f"{URL}/{told['response']}"))["status"] == "queued"
            clock.ready.set()
        await answer.read()
        before, after = await get(client, f"{URL}/{id}"), await ended(client, told["response"])
    assert before["incomplete_details"]["reason"] == "steered"
    [call, result] = before["output"]
    assert call["type"] == "function_call" and ("stopped" in result["output"]) is stop_tools
    assert after["output"][0]["content"][0]["text"] == "I see."
    assert len(model.prompts) == 2 and result["output"] in model.prompts[1] and LESS in model.prompts[1]


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        ("required", "auto"),
        ({"type": "firsttoken:double"}, "auto"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "firsttoken:double"}]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "firsttoken:double"}]},
        ),
    ],
)
@pytest.mark.parametrize("called", [True, False])
async def test_a_call_that_was_required_and_made_is_not_required_again(
    database: Database, choice: Any, left: Any, called: bool
) -> None:
    async with answering(database, model=CallsFirst([DOUBLE], name=MODEL) if called else talk()) as client:
        id, answer, _ = await begun(client, tools=[{"type": "firsttoken:double"}], tool_choice=choice)
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        await answer.read()
        after = await ended(client, told["response"])
    assert after["tool_choice"] == (left if called else choice)


class Hesitant(ScriptedModel):
    """Stands still within the arguments of its call, until `goes_on`."""

    goes_on: asyncio.Event

    def generate(self, *args: Any, **options: Any) -> Any:
        generation = super().generate(*args, **options)

        async def stream(receive: Callable[[Delta], None]) -> None:
            said = ""
            async for delta in generation:
                receive(delta)
                said += delta.text
                if "a long" in said:
                    await self.goes_on.wait()

        generation.stream = stream  # type: ignore[method-assign]
        return generation


async def test_a_call_that_is_being_written_does_not_run_where_tools_are_to_be_stopped(database: Database) -> None:
    ran = False

    @tool
    async def sail(to: str) -> str:
        """Goes there."""
        nonlocal ran
        ran = True
        return "It is done."

    call = '<tool_call>\n{"name": "sail", "arguments": {"to": "a long way off, behind the sea"}}\n</tool_call>'
    model = Hesitant([call, "I see."], name=MODEL)
    model.goes_on = asyncio.Event()
    services = services_with(database, model)
    services = replace(services, agent=Agent(model, None, Toolbox([sail])))
    async with signed_in(database, services) as client:
        answer = await client.post(URL, json={**STREAM, "tools": [{"type": "firsttoken:sail"}]})
        id = response_id_of(await answer.content.readuntil(b"function_call"))
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS, "stop_tools": True}, 202)
        model.goes_on.set()
        await answer.read()
        before, after = await get(client, f"{URL}/{id}"), await ended(client, told["response"])
    assert not ran and "stopped" in before["output"][1]["output"]
    assert before["incomplete_details"]["reason"] == "steered"
    assert after["output"][0]["content"][0]["text"] == "I see."


async def test_an_answer_that_was_complete_stays_complete_and_another_follows(database: Database) -> None:
    model = talk()
    async with answering(database, model=model) as client:
        id, answer, _ = await begun(client)
        model.running[0].cancel = lambda: None  # type: ignore[method-assign]  # its last token came first
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        model.running[0].released.set()
        await answer.read()
        assert (await get(client, f"{URL}/{id}"))["status"] == "completed"
        assert (await ended(client, told["response"]))["status"] == "completed"


async def test_what_waits_for_the_caller_cannot_be_gone_on_with(database: Database) -> None:
    model = Talk([CALLS_MINE], name=MODEL)
    async with answering(database, model=model) as client:
        answer = await client.post(URL, json={**STREAM, "tools": [MINE]})
        id = response_id_of(await answer.content.readuntil(b"mine"))
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        model.running[0].released.set()
        await answer.read()
        assert (await get(client, f"{URL}/{id}"))["status"] == "completed"
        refused = await ended(client, told["response"])
    assert (refused["status"], refused["error"]["code"]) == ("failed", "response_not_active")


async def test_what_is_stopped_is_not_gone_on_with(database: Database) -> None:
    model = talk()
    async with colleagues(database, model) as (client, other):
        id, answer, _ = await begun(client)
        model.running[0].cancel = lambda: None  # type: ignore[method-assign]
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        assert (await post(other, f"{URL}/{told['response']}/cancel", {}))["status"] == "cancelled"
        await post(client, f"{URL}/{id}/cancel", {})
        await answer.read()
        assert len(model.prompts) == 1


async def test_whoever_stops_a_response_stops_what_was_said_to_it(database: Database) -> None:
    model = talk()
    async with answering(database, model=model) as client:
        id, answer, _ = await begun(client)
        model.running[0].cancel = lambda: None  # type: ignore[method-assign]
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        await post(client, f"{URL}/{id}/cancel", {})
        await answer.read()
        after = await ended(client, told["response"])
    assert (after["status"], after["error"]["code"]) == ("failed", "response_already_completed")


async def queued(client: Client, **more: Any) -> str:
    return str((await post(client, URL, {"input": "Tell me.", "background": True, **more}))["id"])


async def test_what_is_said_to_a_response_in_the_queue_ends_it_as_soon_as_it_runs(database: Database) -> None:
    model = talk()
    async with signed_in(database, services_with(database, model, NOBODY_TAKES)) as client:
        id = await queued(client)
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        async with serving(services_with(database, model)):
            after = await ended(client, told["response"])
        before = await get(client, f"{URL}/{id}")
    assert (before["incomplete_details"]["reason"], after["status"]) == ("steered", "completed")


@pytest.mark.parametrize("end", ["cancelled", "deleted", "not started"])
async def test_what_is_said_to_a_response_that_never_runs_has_failed(database: Database, end: str) -> None:
    async with signed_in(database, services_with(database, talk(), NOBODY_TAKES)) as client:
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        id = await queued(client, conversation=conversation)
        first = (await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202))["response"]
        second = (await post(client, f"{URL}/{first}/steer", {"input": LESS}, 202))["response"]
        if end == "cancelled":
            await post(client, f"{URL}/{id}/cancel", {})
        elif end == "deleted":
            await client.delete(f"{URL}/{id}")
        else:
            await client.delete(f"/v1/conversations/{conversation}")
            async with serving(services_with(database, talk())):
                await ended(client, id)
        told = [await replay(client, each) for each in (first, second)]
        after = [await get(client, f"{URL}/{each}") for each in (first, second)]
    code = "conversation_not_found" if end == "not started" else "response_already_completed"
    assert [(each["status"], each["error"]["code"]) for each in after] == [("failed", code)] * 2
    types = ["response.created", "response.failed"]
    assert [[event["type"] for event in events] for events in told] == [types] * 2


async def test_what_is_said_in_a_conversation_that_is_deleted_fails_with_its_response(database: Database) -> None:
    model = talk()
    async with answering(database, model=model) as client:
        conversation = (await post(client, "/v1/conversations", {}))["id"]
        id, answer, _ = await begun(client, conversation=conversation)
        model.running[0].cancel = lambda: None  # type: ignore[method-assign]
        successor = (await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202))["response"]
        await client.delete(f"/v1/conversations/{conversation}")
        model.running[0].released.set()
        await answer.read()
        after = await ended(client, successor)
        before = await get(client, f"{URL}/{id}")
    assert (before["status"], before["firsttoken_successor"], after["status"]) == ("failed", successor, "failed")


def standing_still(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """No successor is accepted. Set once one is about to be."""
    accept, opening = Run.open, asyncio.Event()

    async def stand_still(run: Run) -> None:
        if run.turn.frame.request.previous_response_id is not None:
            opening.set()
            await asyncio.Event().wait()
        await accept(run)

    monkeypatch.setattr(Run, "open", stand_still)
    return opening


async def test_a_successor_that_is_stopped_before_it_was_accepted_has_been_cancelled(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client knows it since something was said to the response before it."""
    opening = standing_still(monkeypatch)
    async with answering(database, model=talk()) as client:
        id, answer, _ = await begun(client)
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        await answer.read()
        await opening.wait()
        stopped = await post(client, f"{URL}/{told['response']}/cancel", {})
        assert (stopped["status"], stopped["output"]) == ("cancelled", [])
        assert await get(client, f"{URL}/{told['response']}") == stopped
        items = (await get(client, f"{URL}/{told['response']}/input_items"))["data"]
    assert items[0]["content"][0]["text"] == LESS


async def test_a_socket_survives_the_successor_that_was_stopped_before_it_was_accepted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = standing_still(monkeypatch)
    async with answering(database, model=talk()) as client, client.ws_connect(URL) as socket:
        await send(socket, "create", input="Tell me.", store=True)
        id = (await until(socket, "created"))["response"]["id"]
        await until(socket, "output_text.delta")
        await send(socket, "steer", previous_response_id=id, input=LESS)
        await opening.wait()
        successor = (await get(client, f"{URL}/{id}"))["firsttoken_successor"]
        await post(client, f"{URL}/{successor}/cancel", {})
        assert (await until(socket, "steer.failed"))["steer"]["input"] == LESS
        await send(socket, "create", input="And now?")
        await until(socket, "completed")


async def test_what_was_said_is_kept_when_the_database_is_away_as_its_answer_fails(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up, failures = RunningStore.give_up, [ConnectionResetError()]

    async def give_up_at_the_second_attempt(store: RunningStore, taken: OwnedResponse, error: Any) -> None:
        if failures:
            raise failures.pop()
        await give_up(store, taken, error)

    monkeypatch.setattr(manager, "PASS_EVERY_S", 0.02)
    monkeypatch.setattr(RunningStore, "give_up", give_up_at_the_second_attempt)
    model = Talk([CALLS_MINE], name=MODEL)
    async with answering(database, model=model) as client:
        answer = await client.post(URL, json={**STREAM, "tools": [MINE]})
        id = response_id_of(await answer.content.readuntil(b"mine"))
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        model.running[0].released.set()
        await answer.read()
        assert (await ended(client, told["response"]))["status"] == "failed"
        items = (await get(client, f"{URL}/{told['response']}/input_items"))["data"]
    assert items[0]["content"][0]["text"] == LESS


async def test_it_is_steered_from_another_worker(database: Database) -> None:
    model = talk()
    async with colleagues(database, model) as (client, other):
        id, answer, _ = await begun(client)
        told = await post(other, f"{URL}/{id}/steer", {"input": LESS}, 202)
        await answer.read()
        assert (await ended(other, told["response"]))["status"] == "completed"
        assert (await get(other, f"{URL}/{id}"))["incomplete_details"]["reason"] == "steered"


async def test_what_is_stored_was_said_though_its_worker_cannot_be_told(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its client would say it again."""
    notify, model = Presence.notify, talk()

    async def notify_of_all_but_that(presence: Presence, word: str, response_id: str) -> None:
        if word == STEER:
            raise ConnectionResetError
        await notify(presence, word, response_id)

    monkeypatch.setattr(Presence, "notify", notify_of_all_but_that)
    async with colleagues(database, model) as (client, other):
        id, answer, _ = await begun(client)
        told = await post(other, f"{URL}/{id}/steer", {"input": LESS}, 202)
        model.running[0].released.set()
        await answer.read()
        assert (await ended(other, told["response"]))["status"] == "completed"
    assert LESS in model.prompts[1]


async def test_what_is_said_is_said_once_when_the_answer_of_the_database_is_lost(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    say, unheard = SteeringStore.say, [CommitUnknown("lost")]

    async def say_unheard(store: SteeringStore, *told: Any) -> str:
        successor = await say(store, *told)
        if unheard:
            raise unheard.pop()
        return successor

    monkeypatch.setattr(SteeringStore, "say", say_unheard)
    model = talk()
    async with answering(database, model=model) as client:
        id, answer, _ = await begun(client)
        told = await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        await answer.read()
        await ended(client, told["response"])
        items = (await get(client, f"{URL}/{told['response']}/input_items"))["data"]
    assert [item["content"][0]["text"] for item in items] == [LESS]


async def test_what_cannot_be_said_is_refused_by_its_name(database: Database) -> None:
    model = talk()
    async with answering(database, model=model) as client, answering(database, "Hi.") as stranger:
        id, answer, _ = await begun(client)
        for body, param in (
            ({}, "input"),
            ({"input": []}, "input"),
            ({"input": 5}, "input"),
            ({"input": [{"role": "system", "content": "x"}]}, "input[0].role"),
            ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].type"),
            ({"input": "x", "stop_tools": "yes"}, "stop_tools"),
            ({"input": "x", "model": "y"}, "model"),
        ):
            assert (await post(client, f"{URL}/{id}/steer", body, 400))["error"]["param"] == param
        await post(stranger, f"{URL}/{id}/steer", {"input": LESS}, 404)
        await post(client, f"{URL}/resp_0/steer", {"input": LESS}, 404)
        assert not model.running[0].cancelled
        model.running[0].cancel = lambda: None  # type: ignore[method-assign]
        large = {"input": "x" * (TEXT_CHARS_MAX * 2 // 3)}
        await post(client, f"{URL}/{id}/steer", large, 202)
        assert (await post(client, f"{URL}/{id}/steer", large, 429))["error"]["code"] == "too_many_pending_steers"
        for _ in range(SAID_MAX - 1):
            await post(client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        await post(client, f"{URL}/{id}/steer", {"input": LESS}, 429)
        await post(client, f"{URL}/{id}/cancel", {})
        await answer.read()
        over = (await post(client, f"{URL}/{id}/steer", {"input": LESS}, 409))["error"]
        assert over["code"] == "response_already_completed"


async def send(socket: ClientWebSocketResponse, type: str, **body: Any) -> None:
    await socket.send_json({"type": f"response.{type}", **body})


async def until(socket: ClientWebSocketResponse, type: str) -> dict[str, Any]:
    while (event := await socket.receive_json(timeout=60))["type"] != f"response.{type}":
        pass
    return dict(event)


@pytest.mark.parametrize(("store", "stream"), [(True, {}), (False, {}), (False, {"stream_id": "a"})])
async def test_a_socket_tells_what_was_accepted_and_the_events_of_its_successor(
    database: Database, store: bool, stream: dict[str, str]
) -> None:
    model = talk()
    async with answering(database, model=model) as client, client.ws_connect(URL) as socket:
        await send(socket, "create", input="Tell me.", store=store, **stream)
        id = (await until(socket, "created"))["response"]["id"]
        await until(socket, "output_text.delta")
        await send(socket, "steer", previous_response_id=id, input=LESS)
        told = await until(socket, "steer.accepted")
        accepted = told["steer"]
        assert accepted["previous_response_id"] == id and accepted["id"].startswith("steer_")
        assert told.get("stream_id") == stream.get("stream_id")
        before = (await until(socket, "incomplete"))["response"]
        assert before["incomplete_details"]["reason"] == "steered"
        created = (await until(socket, "created"))["response"]
        assert before["firsttoken_successor"] == created["id"]
        assert (created["previous_response_id"], created["store"]) == (id, store)
        assert (await until(socket, "completed"))["response"]["id"] == created["id"]
        await send(socket, "create", input="And now?", previous_response_id=created["id"], store=store)
        await until(socket, "completed")
    assert HALF in model.prompts[1] and LESS in model.prompts[1]
    assert model.prompts[2].startswith(model.prompts[1])


async def test_a_socket_gets_back_what_was_not_taken(database: Database) -> None:
    async with answering(database, "Hi.") as client, client.ws_connect(URL) as socket:
        for asked, code in (
            ({"previous_response_id": "resp_0", "input": LESS}, "response_not_found"),
            ({"previous_response_id": "resp_0", "input": 5}, "invalid_input"),
        ):
            await send(socket, "steer", **asked)
            failed = await until(socket, "steer.failed")
            assert (failed["steer"], failed["error"]["code"]) == (asked, code)


@pytest.mark.parametrize("store", [True, False])
async def test_a_socket_tells_that_a_response_has_ended_whether_it_was_stored_or_not(
    database: Database, store: bool
) -> None:
    async with answering(database, "Hi.") as client, client.ws_connect(URL) as socket:
        await send(socket, "create", input="Tell me.", store=store)
        id = (await until(socket, "completed"))["response"]["id"]
        await send(socket, "steer", previous_response_id=id, input=LESS)
        assert (await until(socket, "steer.failed"))["error"]["code"] == "response_already_completed"


@pytest.mark.parametrize("store", [True, False])
async def test_on_a_socket_it_waits_for_the_outputs_of_the_caller(database: Database, store: bool) -> None:
    model = Talk([CALLS_MINE], name=MODEL)
    async with answering(database, model=model) as client, client.ws_connect(URL) as socket:
        await send(socket, "create", input="Tell me.", tools=[MINE], store=store)
        id = (await until(socket, "created"))["response"]["id"]
        await until(socket, "function_call_arguments.done")
        await send(socket, "steer", previous_response_id=id, input=LESS)
        accepted = (await until(socket, "steer.accepted"))["steer"]
        model.running[0].released.set()
        call_id = (await until(socket, "completed"))["response"]["output"][-1]["call_id"]
        pending = await until(socket, "steer.pending")
        [stub] = pending["required_input"]
        assert (pending["steer"], pending["reason"]) == (accepted, "waiting_for_required_input")
        assert stub == {"type": "function_call_output", "call_id": call_id, "name": "mine"}
        more = {"input": [{**stub, "output": "It is done."}], "previous_response_id": id, "store": store}
        await send(socket, "create", **more)
        await until(socket, "completed")
    assert "It is done." in model.prompts[1] and LESS in model.prompts[1]


async def test_what_was_said_survives_the_worker_of_the_response(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(database, monkeypatch, TEXT, "I see.") as two:
        id, _, answer = await two.begin("streamed")
        two.models[0].running[0].cancel = lambda: None  # type: ignore[method-assign]
        told = await post(two.client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        await two.lose()
        after = await ended(two.client, told["response"])
        answer.close()
        before = await get(two.client, f"{URL}/{id}")
    assert before["status"] in ("completed", "incomplete") and PIECE.decode().strip('"') in str(before["output"])
    assert after["status"] == "completed" and LESS in two.models[1].prompts[-1]


async def test_what_nobody_can_go_on_with_fails_together_with_what_was_said(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(database, monkeypatch, TEXT) as two:
        answer = await two.maker.post(URL, json=STREAM)
        id = response_id_of(await answer.content.readuntil(PIECE))
        two.models[0].running[0].cancel = lambda: None  # type: ignore[method-assign]
        told = await post(two.client, f"{URL}/{id}/steer", {"input": LESS}, 202)
        await two.lose()
        after = await ended(two.client, told["response"])
        answer.close()
        assert ((await ended(two.client, id))["status"], after["status"]) == ("failed", "failed")
        items = (await get(two.client, f"{URL}/{after['id']}/input_items"))["data"]
    assert items[0]["content"][0]["text"] == LESS


async def test_a_successor_is_taken_once_however_often_the_end_is_stored(database: Database) -> None:
    store, steering = RunningStore(database), SteeringStore(database)
    tenant = await Keys(database, SECRET).tenant(f"test-{uuid4()}")
    begun = ResponseRecord(new_id("resp"), "in_progress", {"output": []}, datetime.now(UTC))
    await store.begin(tenant, begun, worker=1)
    id = await steering.say(tenant, begun.id, (user(LESS),))
    over = replace(begun, status="completed", completed_at=datetime.now(UTC))
    with pytest.raises(SaidMeanwhile):
        await store.finish(tenant, over, 1, Batch(begun.id, (), 0))
    over = replace(over, body={**over.body, "firsttoken_successor": id})
    for _ in range(2):  # the answer of the database may be lost
        taken = await store.finish(tenant, over, 1, Batch(begun.id, (), 0))
        assert taken is not None and (taken.id, [getattr(item, "text", "") for item in taken.said]) == (id, [LESS])
    with pytest.raises(TurnOver):
        await steering.say(tenant, begun.id, (user(LESS),))
    await store.give_up(OwnedResponse(tenant, id, 1), {"code": "server_error", "message": ""})
    assert await store.finish(tenant, over, 1, Batch(begun.id, (), 0)) is None
