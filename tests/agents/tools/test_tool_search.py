"""The search for deferred tools."""

from __future__ import annotations

import json
from typing import Literal
from uuid import UUID

import pytest

from agents.function_tool import FunctionTool
from agents.tool import ToolContext, ToolError
from agents.tools.tool_search import FOUND_MAX, loaded, tool_search
from agents.turn import ToolSearch

CONTEXT = ToolContext(UUID(int=1))


def function(name: str, description: str = "", *arguments: str, deferred: bool = True) -> FunctionTool:
    properties = {argument: {"type": "string"} for argument in arguments}
    return FunctionTool(name, description, {"type": "object", "properties": properties}, deferred=deferred)


TOOLS = (
    function("mcp__github__create_issue", "Open an issue in a repository.", "title"),
    function("mcp__github__list_pull_requests", "List the pull requests of a repository."),
    function("getWeather", "Tell the weather of a city.", "city"),
    function("send_mail", "Send a message to somebody.", "recipient"),
    function("issue_ticket", "Issue a ticket.", deferred=False),
)


async def found(query: str, by: str = "words") -> list[str]:
    search = tool_search(ToolSearch("search", "words" if by == "words" else "pattern"), TOOLS)
    names: list[str] = json.loads(await search.run(json.dumps({"query": query}), CONTEXT))
    return names


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("issues", "mcp__github__create_issue"),
        ("pull request", "mcp__github__list_pull_requests"),
        ("weather", "getWeather"),
        ("recipient", "send_mail"),
    ],
)
async def test_words_of_names_descriptions_and_arguments_find_a_tool(query: str, first: str) -> None:
    assert (await found(query))[0] == first


async def test_nothing_is_found_by_other_words_and_no_tool_that_is_not_deferred() -> None:
    assert await found("chess") == []
    assert await found("ticket") == []


async def test_an_expression_finds_tools_in_the_order_of_the_request() -> None:
    assert await found("^mcp__github__", "pattern") == [TOOLS[0].name, TOOLS[1].name]
    assert await found("(?i)WEATHER|mail", "pattern") == ["getWeather", "send_mail"]


@pytest.mark.parametrize("query", ["(", "a" * 201, r"(\w{900}){900}", r"(a)\1"])
async def test_an_expression_that_is_broken_or_too_large_is_refused_to_the_model(query: str) -> None:
    with pytest.raises(ToolError, match="the query"):
        await found(query, "pattern")


async def test_an_expression_that_explodes_elsewhere_takes_linear_time() -> None:
    hostile = tool_search(ToolSearch("search", "pattern"), [function("a" * 120, "a" * 2_000 + "!")])
    assert json.loads(await hostile.run(json.dumps({"query": "^(a|a|aa)*$"}), CONTEXT)) == []


@pytest.mark.parametrize("by", ["words", "pattern"])
async def test_of_ten_thousand_long_tools_only_the_beginnings_are_searched(by: Literal["words", "pattern"]) -> None:
    tools = [function(f"tool_{i}", "x" * 32_000 + " hidden") for i in range(10_000)]
    search = tool_search(ToolSearch("search", by), tools)
    assert json.loads(await search.run('{"query": "hidden"}', CONTEXT)) == []
    assert "tool_77" in json.loads(await search.run('{"query": "77"}', CONTEXT))


async def test_a_search_returns_few_tools() -> None:
    search = tool_search(ToolSearch("search"), [function(f"order_{i}") for i in range(50)])
    assert len(json.loads(await search.run('{"query": "order"}', CONTEXT))) == FOUND_MAX


def test_as_many_definitions_are_told_as_fit() -> None:
    names = json.dumps([tool.name for tool in TOOLS[:3]])
    whole = loaded(names, TOOLS, lambda text: True)
    assert [tool.name for tool in whole.tools] == [tool.name for tool in TOOLS[:3]]
    assert [tool.name for tool in loaded(names, TOOLS, lambda text: len(text) < len(whole.text)).tools] == [
        tool.name for tool in TOOLS[:2]
    ]
    assert loaded(names, TOOLS, lambda text: False).tools == ()
