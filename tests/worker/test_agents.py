"""Agents by name: through the API, and through the command that checks their file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from agents.definition import USUAL, AgentRegistry, Bounds, Definition, SearchTable, Surface
from agents.tools import NAMES, builtin_toolbox
from inference.trace import Trace
from migrations.pool import Database
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, ShelfRetriever, get, post, services_with, stream
from tests.worker.cli.test_main import complaint, firsttoken
from tests.worker.harness import SECRET, Client, serving
from tests.worker.reader import Reader
from tests.worker.sharing import signed_in
from worker.auth.keys import ApiKey, Keys
from worker.auth.principal import KeyLimits
from worker.cli.policies import policy
from worker.config import Config
from worker.lifecycle.agent_files import read_agents
from worker.runs.record import Targets
from worker.services import Services

CALL = '<tool_call>\n{"name": "double", "arguments": {"number": 21}}\n</tool_call>'
HELPER = Definition(
    instructions="You double numbers.",
    surface="desk",
    tools=["double"],
    search=SearchTable(stores=["docs"]),
    budget=Bounds(tokens=60),
)
KEY_BOUNDS: dict[str, float | str] = {"steps": 3, "tokens": 1000, "class": "standard", "requests_per_minute": 60}
PATIENT = Definition(tools=["double"], budget=Bounds(steps=64))


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel([CALL, "It is 42."], name=MODEL, piece_chars=8)


@pytest.fixture
def services(database: Database, model: ScriptedModel) -> Services:
    targets = Targets.parse("desk=60000/60000,embedded=0/0")
    agent_registry = AgentRegistry({"helper": HELPER, "patient": PATIENT})
    return replace(services_with(database, model), agent_registry=agent_registry, targets=targets)


@pytest.fixture
async def client(database: Database, services: Services) -> AsyncIterator[Client]:
    keys = Keys(database, SECRET)
    async with serving(services) as client:
        key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "test"))[1]
        client.session.headers["Authorization"] = f"Bearer {key}"
        yield client


async def test_an_agent_answers_with_its_own_tools_and_search(client: Client, model: ScriptedModel) -> None:
    reader = Reader.read(await stream(client, "/v1/responses", {"model": "agent/helper", "input": "double 21"}))
    assert reader.final is not None
    assert reader.final["model"] == "agent/helper"
    kinds = [item["type"] for item in reader.final["output"]]
    assert kinds == ["file_search_call", "function_call", "function_call_output", "message"]
    assert "You double numbers." in model.prompts[0]


async def test_an_agent_answers_chat_completions(client: Client) -> None:
    body = {"model": "agent/helper", "messages": [{"role": "user", "content": "double 21"}]}
    completion = await post(client, "/v1/chat/completions", body)
    assert completion["model"] == "agent/helper"
    assert completion["choices"][0]["message"]["content"] == "It is 42."


async def test_its_budget_holds(client: Client, model: ScriptedModel) -> None:
    model.replies = ["word " * 400]
    response = await post(client, "/v1/responses", {"model": "agent/helper", "input": "talk"})
    assert response["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == 60


async def test_a_budget_of_the_request_ends_the_turn_and_is_named_in_the_answer(
    client: Client, model: ScriptedModel
) -> None:
    body = {"model": "agent/helper", "input": "double 21", "metadata": {"max_steps": "1", "mine": "too"}}
    response = await post(client, "/v1/responses", body)
    assert (response["status"], len(model.prompts)) == ("completed", 1)
    assert response["metadata"] == {"max_steps": "1", "mine": "too", "firsttoken:budget": "steps"}


async def test_a_deadline_cuts_the_answer_and_says_so(client: Client, model: ScriptedModel) -> None:
    model.replies = ["word " * 100_000]
    response = await post(client, "/v1/responses", {"input": "talk", "metadata": {"max_seconds": "0.001"}})
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens", "firsttoken:cut": "request.seconds"}
    assert response["metadata"]["firsttoken:budget"] == "wall_clock"
    assert response["usage"]["output_tokens"] < 4096


async def test_the_bounds_of_a_key_hold_for_every_turn(
    client: Client, model: ScriptedModel, database: Database
) -> None:
    keys = Keys(database, SECRET)
    tenant_id = await keys.tenant(f"test-{uuid4()}")
    key = (await keys.create(tenant_id, "guest", bounds=KeyLimits(steps=1, tokens=30)))[1]
    client.session.headers["Authorization"] = f"Bearer {key}"
    response = await post(client, "/v1/responses", {"input": "double 21", "tools": [{"type": "firsttoken:double"}]})
    assert response["metadata"] == {"firsttoken:budget": "steps"}
    model.replies = ["word " * 400]
    completion = await post(client, "/v1/chat/completions", {"messages": [{"role": "user", "content": "talk"}]})
    assert completion["usage"]["completion_tokens"] == 30


async def test_a_key_bound_to_the_default_number_of_steps_gets_no_more_from_an_agent(
    client: Client, model: ScriptedModel, database: Database
) -> None:
    keys = Keys(database, SECRET)
    key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "guest", bounds=KeyLimits(steps=8)))[1]
    client.session.headers["Authorization"] = f"Bearer {key}"
    model.replies = [CALL.replace("21", str(number)) for number in range(20)]
    response = await post(client, "/v1/responses", {"model": "agent/patient", "input": "double all"})
    assert (response["metadata"], len(model.prompts)) == ({"firsttoken:budget": "steps"}, 8)


async def test_a_key_whose_budget_of_the_day_is_spent_gets_a_429_that_nobody_repeats(
    client: Client, services: Services, database: Database
) -> None:
    keys = Keys(database, SECRET)
    key = (await keys.create(await keys.tenant(f"test-{uuid4()}"), "guest", bounds=KeyLimits(cost_per_day=1.0)))[1]
    client.session.headers["Authorization"] = f"Bearer {key}"
    await post(client, "/v1/responses", {"input": "hello"})
    principal = await services.authenticator.identify(client.session.headers, {}, "POST", Trace(), "")
    assert principal is not None
    services.daily_budgets.charge(principal, 1.0)
    for path, body in (
        ("/v1/responses", {"input": "hello"}),
        ("/v1/responses", {"input": "hello", "background": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ):
        async with client.post(path, json=body) as refused:
            assert (refused.status, refused.headers["X-Should-Retry"]) == (429, "false")
            assert (await refused.json())["error"]["code"] == "insufficient_quota"
            assert int(refused.headers["Retry-After"]) <= 86400


async def test_the_turns_of_an_agent_are_counted_under_its_surface(client: Client, services: Services) -> None:
    await post(client, "/v1/responses", {"model": "agent/helper", "input": "double 21"})
    await post(client, "/v1/responses", {"input": "hello"})
    told = services.telemetry.metrics.render().decode()
    assert 'firsttoken_turns_total{status="completed",surface="desk"} 1.0' in told
    assert 'firsttoken_turns_total{status="completed",surface="embedded"} 1.0' in told


async def test_the_answers_of_a_surface_are_held_to_its_target(client: Client) -> None:
    await post(client, "/v1/responses", {"model": "agent/helper", "input": "double 21"})
    await post(client, "/v1/responses", {"input": "hello"})
    surfaces = {row["surface"]: row for row in (await get(client, "/ops/api/summary"))["surfaces"]}
    assert {name: (row["judged"], row["within_target"]) for name, row in surfaces.items()} == {
        "desk": (1, 1),
        "embedded": (1, 0),
    }
    assert surfaces["desk"]["target"] == {"ttft_ms": 60_000, "tpot_ms": 60_000, "ttfa_ms": None}
    assert {turn["within_target"] for turn in (await get(client, "/ops/api/traces"))["data"]} == {True, False}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_what_no_worker_could_answer_is_not_held_against_it(client: Client, path: str) -> None:
    long = "word " * 50_000
    body = {"messages": [{"role": "user", "content": long}]} if path.endswith("completions") else {"input": long}
    assert (await post(client, path, body, 400))["error"]["code"] == "context_length_exceeded"
    (surface,) = (await get(client, "/ops/api/summary"))["surfaces"]
    assert (surface["requests"], surface["judged"]) == (1, 0)
    assert len((await get(client, "/ops/api/traces?status=invalid"))["data"]) == 1


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_a_request_names_the_surface_where_its_answer_is_read(client: Client, path: str) -> None:
    body = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    async with client.post(path, json=body, headers={"X-Firsttoken-Surface": "desk"}) as answer:
        assert answer.status == 200
    async with client.post(path, json=body, headers={"X-Firsttoken-Surface": "moon"}) as refused:
        error = (await refused.json())["error"]
    assert (refused.status, error["param"]) == (400, "X-Firsttoken-Surface")
    assert error["message"].endswith("it must be one of desk, embedded.")
    assert [row["surface"] for row in (await get(client, "/ops/api/summary"))["surfaces"]] == ["desk"]


@pytest.mark.parametrize(
    ("path", "counting", "body"),
    [
        ("/v1/responses", "/v1/responses/input_tokens", {"input": "hi"}),
        ("/v1/messages", "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_the_tokens_of_a_prompt_are_counted_with_what_its_surface_says(
    database: Database, path: str, counting: str, body: dict[str, object]
) -> None:
    surfaces = {"desk": Surface(instructions="Say less."), "embedded": Surface(instructions="Begin with the answer.")}
    services = replace(services_with(database, ScriptedModel(["Hi."], name=MODEL)), surfaces=surfaces)
    more = {"max_tokens": 5} if path == "/v1/messages" else {}
    async with signed_in(database, services) as client:
        for headers in ({}, {"X-Firsttoken-Surface": "desk"}):
            async with client.post(counting, json=body, headers=headers) as answer:
                counted = (await answer.json())["input_tokens"]
            async with client.post(path, json=body | more, headers=headers) as answer:
                assert counted == (await answer.json())["usage"]["input_tokens"]


async def test_a_header_makes_no_room_for_more_metadata(client: Client) -> None:
    body = {"input": "hi", "metadata": {str(i): "x" for i in range(16)}}
    async with client.post("/v1/responses", json=body, headers={"X-Firsttoken-Surface": "desk"}) as refused:
        assert (refused.status, (await refused.json())["error"]["param"]) == (400, "metadata")


async def test_metadata_makes_no_surface_up(client: Client) -> None:
    await post(client, "/v1/responses", {"input": "hi", "metadata": {"firsttoken:surface": "moon"}})
    assert [row["surface"] for row in (await get(client, "/ops/api/summary"))["surfaces"]] == ["embedded"]


async def test_an_agent_that_is_not_there_is_named(client: Client) -> None:
    error = (await post(client, "/v1/responses", {"model": "agent/nobody", "input": "x"}, status=404))["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "agent/helper" in error["message"]


async def test_the_models_list_has_the_agents(client: Client) -> None:
    assert "agent/helper" in [model["id"] for model in (await get(client, "/v1/models"))["data"]]
    assert (await get(client, "/v1/models/agent/helper"))["object"] == "model"


def test_the_command_knows_the_tools_that_a_worker_has() -> None:
    assert builtin_toolbox(ShelfRetriever()).names == NAMES


def test_the_command_lists_the_agents(tmp_path: Path) -> None:
    assert "no agents" in firsttoken("agents", "--home", str(tmp_path)).stdout
    (tmp_path / "agents.toml").write_text('[agents.support]\ntools = ["calculator"]\nsearch = {stores = ["docs"]}')
    assert "agent/support" in firsttoken("agents", "--home", str(tmp_path)).stdout
    (tmp_path / "agents.toml").write_text("[surfaces.kiosk]\nfirst_token_ms = 250\ntokens = 90\n")
    told = firsttoken("agents", "--home", str(tmp_path), "--targets", "chat=700/80").stdout
    assert "surface kiosk            first token 250 ms; tokens 90" in told
    assert "surface chat             first token 700 ms, pace 80 ms; no limits of its own" in told
    assert "surface batch            no targets; class batch, late wait" in told


def test_the_command_shows_what_a_key_gets_on_each_surface(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text('[surfaces.kiosk]\nfirst_token_ms = 250\ntokens = 90\nlate = "refuse"\n')
    key = ApiKey("key_1", "web", "ft_ab", frozenset(), datetime.now(UTC), None, None, None, KEY_BOUNDS)
    surfaces = {**USUAL, **read_agents(Config(home=tmp_path)).surfaces}
    config = Config(answer_s=600)
    assert policy(key, surfaces["kiosk"], config) == (
        "class standard, steps 3, calls 16, tokens 90, seconds 120, tool_seconds 20, answer_tokens 90, answer_s 600, "
        "late refuse, 60 requests per minute"
    )
    assert "class batch" in policy(key, surfaces["batch"], config)
    assert "tokens 256" in policy(key, surfaces["completion"], config)
    free = policy(replace(key, bounds={}), surfaces["chat"], config)
    assert "class interactive" in free and "answer_tokens" not in free


def test_the_command_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    assert f"there is no file {path}" in complaint("agents", "--agents", str(path))
    path.write_text('[agents.support]\ntools = ["dice"]')
    assert "agent support: there is no tool 'dice'" in complaint("agents", "--agents", str(path))
    path.write_text("[agents.support]\nbudget = {steps = 0}")
    assert "agents.support.budget.steps" in complaint("agents", "--agents", str(path))


def test_a_worker_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text("[agents.support]\nstep = 1")
    assert "agents.support.step" in complaint("serve", "--home", str(tmp_path), "--port", "0")
