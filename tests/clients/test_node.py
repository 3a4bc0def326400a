"""Clients in JavaScript against a real worker: a process of Node's runs all scenarios of each, in `clients/node`."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import cache
from typing import Any
from uuid import UUID

import pytest

from deploy import clients
from inference.grammar.schema import json_grammar
from tests.inference.test_everyday_schemas import walked
from tests.serving import clean_environment

TIMEOUT_S = 280.0  # of three seconds of computing: other programs may leave little of the processor
# The answers that are compared are those that tests of other clients hold to a margin.
pytestmark = [pytest.mark.timeout(300), pytest.mark.any_answer("one process asks for all of these tests")]
HELLO, RAIN = "Hello! How can I help you?", "rain"
Scenario = Callable[..., Any]
ENDLESS = ("ends_with", "includes")  # at random, nearly no text gets to the end that these want
WALK_TOKENS, SEEDS = 150, 2


@pytest.fixture(scope="module")
def node() -> str:
    """Its path, with the packages in place. They come from the cache, unless nobody has run `make test` here before."""
    clients.install()
    return str(clients.NODE)


def run_node(node: str, client: str, *scenario: str, sent: str = "", **environment: str) -> Any:
    done = subprocess.run(
        [node, f"{client}.mjs", *scenario],
        cwd=clients.FOLDER,
        env=clean_environment(**environment),
        input=sent,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def run(node: str, server: Mapping[str, Any]) -> Scenario:
    """What a scenario of a client returned, or the error that it ended with."""

    @cache
    def told_by(client: str) -> Mapping[str, Any]:
        told: Mapping[str, Any] = run_node(
            node, client, CLIENT_TEST_URL=f"{server['url']}/v1", CLIENT_TEST_KEY=server["api_key"]
        )
        return told

    return lambda client, scenario: told_by(client)[scenario]


def test_openai_node_streams_chat_completions(run: Scenario) -> None:
    told = run("openai", "chat")
    assert told["text"] == told["whole"] == HELLO
    assert told["usage"]["completion_tokens"] > 0


def test_openai_node_runs_a_loop_of_tools(run: Scenario) -> None:
    told = run("openai", "tools")
    assert told["calls"] == [{"city": "Oslo"}]
    assert RAIN in told["text"]


@pytest.mark.parametrize("surface", ["chat", "responses"])
def test_openai_node_parses_answers_by_zod(run: Scenario, surface: str) -> None:
    """The client itself refuses what does not fit."""
    told = run("openai", f"zod_{surface}")
    if surface == "responses":
        assert "response.output_text.delta" in told["types"]
        told = told["parsed"]
    assert told["mood"] in ("good", "bad") and date.fromisoformat(told["due"])


def test_openai_node_reads_what_is_wrong_with_a_request(run: Scenario) -> None:
    told = run("openai", "refused")
    assert (told["name"], told["status"], told["param"]) == ("BadRequestError", 400, "temperature")
    assert told["request"]


def test_the_ai_sdk_refers_to_what_it_was_told_in_earlier_turns(run: Scenario) -> None:
    told = run("ai-sdk", "two_turns")
    assert told["calls"] == [{"city": "Oslo"}]
    assert RAIN in told["first"] and told["second"] == HELLO
    assert "item_reference" in told["sent"] and told["requests"] == 3


def test_the_ai_sdk_streams_text(run: Scenario) -> None:
    told = run("ai-sdk", "stream")
    assert told["text"] == told["whole"] == HELLO
    assert told["finish"] == "stop" and told["usage"]["outputTokens"] > 0


def test_the_ai_sdk_makes_objects_of_the_everyday_types_of_zod(run: Scenario) -> None:
    made = run("ai-sdk", "object")
    assert UUID(made["id"]) and datetime.fromisoformat(made["when"]) and date.fromisoformat(made["day"])
    assert ipaddress.ip_address(made["ip"])
    assert made["shape"]["type"] in ("circle", "square") and len(made["place"]) == 2


def test_anthropics_client_streams_messages(run: Scenario) -> None:
    told = run("anthropic", "messages")
    assert told["text"] == told["final"] == told["whole"] == HELLO
    assert told["stop"] == "end_turn"


@pytest.mark.parametrize("scenario", ["tools", "tools_streamed"])
def test_anthropics_client_runs_its_own_loop_of_tools(run: Scenario, scenario: str) -> None:
    told = run("anthropic", scenario)
    assert told["calls"] == [{"city": "Oslo"}]
    assert RAIN in told["text"]
    assert {"input_json_delta", "text_delta"} <= set(told.get("types", ("input_json_delta", "text_delta")))


def test_anthropics_client_counts_the_tokens_of_a_prompt(run: Scenario) -> None:
    told = run("anthropic", "count")
    assert told["counted"] == told["read"] > 0


def test_anthropics_client_reads_what_is_wrong_with_a_request(run: Scenario) -> None:
    told = run("anthropic", "refused")
    assert {name: (error["name"], error["status"], error["type"]) for name, error in told.items()} == {
        "key": ("AuthenticationError", 401, "authentication_error"),
        "model": ("NotFoundError", 404, "not_found_error"),
        "field": ("BadRequestError", 400, "invalid_request_error"),
        "late_field": ("BadRequestError", 400, "invalid_request_error"),
    }
    assert "max_tokens" in told["field"]["text"] and "temperature" in told["late_field"]["text"]


@pytest.mark.parametrize("transport", ["responses", "chat", "websocket"])
def test_the_agents_sdk_runs_an_agent_with_a_tool(run: Scenario, transport: str) -> None:
    told = run("agents-sdk", transport)
    assert told["calls"] == [{"city": "Oslo"}]
    assert RAIN in told["text"]


def test_zod_takes_what_its_own_schemas_let_through(node: str) -> None:
    """Of all of its everyday types, in both of the drafts that clients send."""
    texts: dict[str, list[str]] = {}
    for name, schema in run_node(node, "zod", "schemas").items():
        grammar = json_grammar(schema)
        walks = [walked(grammar, seed, WALK_TOKENS) for seed in range(SEEDS)]
        texts[name] = [text for text in walks if text is not None]
    assert {name.split()[0] for name, written in texts.items() if not written} <= {*ENDLESS}
    assert run_node(node, "zod", "refused", sent=json.dumps(texts)) == []
