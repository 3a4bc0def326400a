"""Clients in Python that want other packages than the tests: each has a process and packages of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from deploy import clients
from tests.serving import clean_environment

TIMEOUT_S = 280.0  # of seven seconds of computing: other programs may leave little of the processor
# The answers that are compared are those that tests of other clients hold to a margin.
pytestmark = [pytest.mark.timeout(300), pytest.mark.any_answer("one process asks for all of these tests")]
HELLO, RAIN = "Hello! How can I help you?", "rain"


def told_by(client: str, server: Mapping[str, Any]) -> dict[str, Any]:
    """What each scenario of `client` returned, or the error that it ended with."""
    environment = clean_environment(
        CLIENT_TEST_URL=f"{server['url']}/v1",
        CLIENT_TEST_KEY=server["api_key"],
        PYTHONPATH=str(clients.packages_of(client)),
        LITELLM_LOCAL_MODEL_COST_MAP="True",  # otherwise it looks for prices in the network
    )
    # -S: the packages of this environment stay out.
    command = [sys.executable, "-S", str(clients.PYTHON_FOLDER / f"{client}_client.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def agents(server: Mapping[str, Any]) -> dict[str, Any]:
    return told_by("agents", server)


@pytest.fixture(scope="module")
def litellm(server: Mapping[str, Any]) -> dict[str, Any]:
    return told_by("litellm", server)


@pytest.mark.parametrize("transport", ["responses", "responses_streamed", "chat", "chat_streamed", "websocket"])
def test_the_agents_sdk_runs_an_agent_over_two_turns(agents: Mapping[str, Any], transport: str) -> None:
    told = agents[transport]
    assert told == {"calls": ["Oslo"], "texts": ["The weather is rain.", HELLO]}


def test_the_agents_sdk_holds_an_agent_to_a_type(agents: Mapping[str, Any]) -> None:
    told = agents["typed"]
    assert len(told["title"]) <= 12 and 0 <= told["hours"] <= 24 and told["done"] in (None, False, True)


@pytest.mark.parametrize("scenario", ["loop", "loop_streamed"])
def test_the_documented_loop_of_litellm_comes_to_an_answer(litellm: Mapping[str, Any], scenario: str) -> None:
    told = litellm[scenario]
    assert [json.loads(arguments) for arguments in told["calls"]] == [{"city": "Oslo"}]
    assert RAIN in told["text"]


def test_litellm_speaks_to_the_other_surfaces(litellm: Mapping[str, Any]) -> None:
    assert (litellm["responses"], litellm["messages_api"]) == (HELLO, HELLO)
    assert litellm["embedding"] == 2
    assert 1 <= litellm["text_completion"] <= 4  # it may end before


def test_litellm_holds_an_answer_to_a_type(litellm: Mapping[str, Any]) -> None:
    assert 0 <= litellm["typed"]["hours"] <= 24


def test_litellm_reads_what_is_wrong_with_a_request(litellm: Mapping[str, Any]) -> None:
    assert litellm["refused"]["status"] == 400 and "temperature" in litellm["refused"]["text"]
