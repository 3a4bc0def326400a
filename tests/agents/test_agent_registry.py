"""agents.toml: what it may say, what it does to a turn, and how it is refused."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from agents.definition import AgentRegistry, Bounds, Definition, InvalidAgents, SearchTable
from agents.events import Usage
from agents.toml_file import FILE_BYTES_MAX
from agents.turn import Caps, FileSearch, Limits, Owner
from inference.generation import Sampling
from tests.agents.turns import asked

SUPPORT = """
[agents.support]
description = "Answers questions"
instructions = "You answer from the handbook."
model = "demo-chat"
tools = ["calculator", "current_time"]
search = { stores = ["handbook"], results = 3, score_threshold = 0.4 }
budget = { steps = 4, calls = 6, seconds = 30, tokens = 500, thought_tokens = 40, tool_seconds = 5 }

[agents.plain]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "agents.toml"
    path.write_text(text)
    return path


def test_a_file_names_agents(tmp_path: Path) -> None:
    agent_registry = AgentRegistry.read(written(tmp_path, SUPPORT))
    assert agent_registry.models == ["agent/support", "agent/plain"]
    support = agent_registry.of("agent/support")
    assert (support.model, support.tools) == ("demo-chat", ["calculator", "current_time"])


def test_an_agent_brings_instructions_tools_search_and_bounds(tmp_path: Path) -> None:
    turn = AgentRegistry.read(written(tmp_path, SUPPORT)).of("agent/support").applied(asked())
    assert turn.instructions == "You answer from the handbook."
    assert turn.server_tools == ("calculator", "current_time")
    assert turn.file_search == FileSearch(("handbook",), 3, 0.4)
    told = Limits(steps=4, calls=6, seconds=30, tokens=500, thought_tokens=40, tool_seconds=5)
    by = Owner.AGENT
    assert turn.limits == replace(told, answer_s=30, answer_tokens=500, seconds_by=by, tokens_by=by)


def test_what_is_no_agent_changes_nothing() -> None:
    turn = asked(instructions="Be brief.", server_tools=("calculator",), sampling=Sampling(max_tokens=7))
    assert AgentRegistry().of("demo-chat").applied(turn) == turn
    assert AgentRegistry({"demo-chat": Definition(tools=["x"])}).of("demo-chat").applied(turn) == turn


def test_a_request_adds_to_an_agent() -> None:
    own = FileSearch(("mine",))
    turn = asked(instructions="Be brief.", server_tools=("calculator", "dice"), file_search=own)
    agent = Definition(instructions="You are kind.", tools=["calculator"], search=SearchTable(stores=["docs"]))
    done = agent.applied(turn)
    assert done.instructions == "You are kind.\n\nBe brief."
    assert done.server_tools == ("calculator", "dice")
    assert done.file_search == own


def test_a_request_may_ask_for_less_than_the_bounds_and_gets_no_more() -> None:
    agent = Definition(budget=Bounds(calls=30, tokens=100, steps=2))
    asked_less = agent.applied(asked(caps=Caps(calls=3, tokens=50, steps=1))).limits
    assert (asked_less.calls, asked_less.tokens, asked_less.steps) == (3, 50, 1)
    asked_more = agent.applied(asked(caps=Caps(calls=99, tokens=9999, steps=60))).limits
    assert (asked_more.calls, asked_more.tokens, asked_more.steps) == (30, 100, 2)
    asked_nothing = agent.applied(asked()).limits
    assert (asked_nothing.calls, asked_nothing.tokens, asked_nothing.steps) == (30, 100, 2)


def test_a_request_that_asks_for_the_default_gets_the_default_from_an_agent_that_allows_more() -> None:
    agent, usual = Definition(budget=Bounds(calls=99, tokens=9999, steps=60)), Limits()
    limits = agent.applied(asked(caps=Caps(calls=usual.calls, tokens=usual.tokens, steps=usual.steps))).limits
    assert limits == replace(usual, answer_tokens=usual.tokens, tokens_by=Owner.REQUEST)


def test_without_an_agent_a_request_gets_no_more_than_the_defaults() -> None:
    assert Definition().applied(asked(caps=Caps(calls=99, steps=60, cost=inf))).limits == Limits()


def test_the_budgets_of_the_loop_are_not_limits_of_the_answer() -> None:
    limits = Definition().applied(asked(caps=Caps(tokens=50_000, seconds=2000))).limits
    assert (limits.tokens, limits.seconds) == (Limits().tokens, Limits().seconds)
    assert (limits.answer_tokens, limits.answer_s) == (50_000, 2000)


def test_a_cost_is_limited_by_the_lower_of_agent_and_request() -> None:
    agent = Definition(budget=Bounds(cost=5))
    costs = [agent.applied(asked(caps=Caps(cost=cost))).limits.cost for cost in (9, 2, None)]
    assert costs == [5, 2, 5]
    assert Definition().applied(asked(caps=Caps(cost=2))).limits.cost == 2


def test_prices_stand_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "agents.toml"
    path.write_text("[prices]\noutput = 2.0\ntools = { files_read = 0.5 }")
    prices = AgentRegistry.read(path).prices
    assert prices.of_step(Usage(1000, 400, 500)) == pytest.approx(1.0)
    assert (prices.of_call("files_read"), prices.of_call("calculator")) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[agents", "is not valid TOML"),
        ("[prices]\noutput = -1", "prices.output"),
        ('[agents.a]\nsurface = "Help Desk"', "agents.a.surface"),
        ("agents = 3", "agents: Input should be a valid dictionary"),
        ("[prices]\n[agent.support]", ":2: agent: there is no such key; did you mean agents?"),
        ("[agents.Support]", "agents.Support"),
        ("[agents.support]\ntool = []", "agents.support.tool: there is no such key; did you mean tools?"),
        ("[agents.support]\ntools = 'x'", "agents.support.tools: Input should be a valid list"),
        ("[agents.support]\nbudget = {steps = 0}", "agents.support.budget.steps: Input should be greater than"),
        ("[agents.support]\nsearch = {}", "agents.support.search.stores: is missing"),
        ("[mcp.files]", "mcp.files: a server has either a command or a url"),
        ("[mcp.files]\ncommand = ['a']\nurl = 'http://b'", "mcp.files: a server has either"),
        ("[mcp.my_files]\ncommand = ['a']", "mcp.my_files"),
        ("[mcp.files]\nurl = 'file:///etc'", "mcp.files.url"),
        ("x = '" + "a" * FILE_BYTES_MAX + "'", "is longer than"),
    ],
)
def test_a_wrong_file_is_refused_where_it_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidAgents) as refused:
        AgentRegistry.read(path)
    assert str(path) in str(refused.value)
    assert said in str(refused.value)


def test_problems_name_the_agent_and_what_it_lacks(tmp_path: Path) -> None:
    agent_registry = AgentRegistry.read(written(tmp_path, SUPPORT))
    assert agent_registry.problems(["calculator", "current_time"], ["demo-chat"]) == []
    (tool,) = agent_registry.problems(["calculator"])
    assert tool == "agent support: there is no tool 'current_time'. Available: calculator."
    (model,) = agent_registry.problems(["calculator", "current_time"], ["other"])
    assert "'demo-chat'" in model and "'other'" in model


def test_tools_of_a_server_are_named_after_it(tmp_path: Path) -> None:
    text = "[mcp.files]\ncommand = ['serve-files']\ntools = ['read']\n[agents.a]\ntools = ['files_read', 'calculator']"
    agent_registry = AgentRegistry.read(written(tmp_path, text))
    assert agent_registry.problems(["calculator"]) == []
    assert [(tool.name, tool.server) for tool in agent_registry.remote_tools] == [("files_read", "files")]
    assert agent_registry.servers["files"].offers("read") and not agent_registry.servers["files"].offers("write")
    assert [agent_registry.server_of(name) for name in ("files_", "files", "other_read")] == [None, None, None]


def test_models_have_a_beginning_of_their_own_beside_the_agents(tmp_path: Path) -> None:
    agent_registry = AgentRegistry.read(written(tmp_path, SUPPORT)).beside(["small", "support"])
    assert list(agent_registry.agents) == ["small", "support", "plain"]
    turn = asked()
    assert agent_registry.agents["small"].applied(turn) == replace(turn, model="small")
    assert agent_registry.agents["support"].instructions
