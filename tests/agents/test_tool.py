from __future__ import annotations

import asyncio
import json
import threading
from typing import Literal

import pytest

from agents.tool import ToolContext, ToolError, tool
from agents.toolbox import CUT_NOTE, Toolbox, ToolResult, fit, shorten
from tests.agents.turns import TENANT, passage


@tool
def book(room: str, seats: int = 2, kind: Literal["quiet", "loud"] = "quiet", tags: list[str] | None = None) -> str:
    """Book a room
    for a meeting.

    It is free of charge.

    Args:
        room: The name of the room,
            as on its door
        seats: How many people come
    """
    return f"{room} for {seats}, {kind}, {tags}"


@tool
async def whoami(context: ToolContext) -> str:
    """Tell the tenant."""
    return str(context.tenant_id)


@tool
def explode() -> str:
    """Fail in an unforeseen way."""
    raise RuntimeError("the secret is 42")


@tool
def refuse() -> str:
    """Fail in a foreseen way."""
    raise ToolError("no room is free")


@tool
def thread() -> int:
    """Tell which thread this is."""
    return threading.get_ident()


@tool
async def hang() -> None:
    """Never come back."""
    await asyncio.Event().wait()


@tool
def shout() -> str:
    """Say a lot."""
    return "a\0\ud800" * 1000


BOX = Toolbox([book, whoami, explode, refuse, thread, hang, shout])


async def run(name: str, arguments: str = "{}", timeout_s: float = 5.0) -> ToolResult:
    return await BOX.run(name, arguments, ToolContext(TENANT), timeout_s=timeout_s, result_chars=100)


def test_hints_and_docstring_make_the_schema() -> None:
    assert book.schema == {
        "type": "function",
        "function": {
            "name": "book",
            "description": "Book a room for a meeting.",
            "parameters": {
                "type": "object",
                "properties": {
                    "room": {"type": "string", "description": "The name of the room, as on its door"},
                    "seats": {"type": "integer", "default": 2, "description": "How many people come"},
                    "kind": {"type": "string", "default": "quiet", "enum": ["quiet", "loud"]},
                    "tags": {
                        "anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}],
                        "default": None,
                    },
                },
                "required": ["room"],
            },
        },
    }


def test_the_schema_is_made_once_as_every_step_reads_it_several_times() -> None:
    assert book.schema is book.schema


def test_the_schema_has_its_keys_in_the_order_that_models_know() -> None:
    parameters = json.dumps(book.schema["function"]["parameters"])
    assert parameters.startswith('{"type": "object", "properties": {"room": {"type": "string", "description"')


def test_the_context_is_no_argument() -> None:
    assert whoami.schema["function"]["parameters"] == {"type": "object", "properties": {}, "required": []}


def test_a_tool_needs_a_docstring_and_hints() -> None:
    def silent(x: int) -> int:
        return x

    def untyped(x) -> int:  # type: ignore[no-untyped-def]  # that is the point
        """Say something."""
        return 1

    def many(*numbers: int) -> int:
        """Say something."""
        return 1

    for function in (silent, untyped, many):
        with pytest.raises(TypeError, match=function.__name__):
            tool(function)


async def test_arguments_are_checked_and_filled_in() -> None:
    assert await book.run('{"room": "Aula", "seats": "3"}', ToolContext(TENANT)) == "Aula for 3, quiet, None"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{}", "room: Field required"),
        ('{"room": 5}', "room: Input should be a valid string"),
        ('{"room": "A", "kind": "odd"}', "kind: Input should be 'quiet' or 'loud'"),
        ('{"room": "A", "chairs": 3}', "chairs: Extra inputs"),
        ('{"room": "A", "seats": "many"}', "seats: Input should be a valid integer"),
        ("[]", "JSON: Input should be an object"),
        ("not json", "JSON: Invalid JSON"),
    ],
)
async def test_wrong_arguments_are_a_result_that_says_what_is_wrong(arguments: str, told: str) -> None:
    result = await run("book", arguments)
    assert result.failed
    assert result.output.startswith("Error: invalid arguments: ")
    assert told in result.output


async def test_a_tool_knows_its_tenant() -> None:
    assert (await run("whoami")).output == str(TENANT)


async def test_a_foreseen_failure_is_told_to_the_model() -> None:
    assert (await run("refuse")).output == "Error: no room is free"


async def test_an_unforeseen_failure_is_told_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    result = await run("explode")
    assert (result.output, result.failed) == ("Error: explode failed (RuntimeError)", True)
    assert "the secret is 42" in caplog.text


async def test_an_unknown_tool_is_a_result() -> None:
    assert (await run("nope")).output == "Error: there is no tool named 'nope'"


async def test_a_tool_that_hangs_is_stopped() -> None:
    assert (await run("hang", timeout_s=0.01)).output == "Error: hang took longer than 0.01 seconds and was stopped"


async def test_a_plain_function_does_not_block_the_loop() -> None:
    assert (await run("thread")).output != str(threading.get_ident())


async def test_a_long_result_is_cut_and_made_storable() -> None:
    result = await run("shout")
    assert len(result.output) == 100
    assert result.output.endswith(CUT_NOTE)
    assert result.output.startswith("a\N{REPLACEMENT CHARACTER}?")


async def test_a_cancelled_run_passes_on_its_cancellation() -> None:
    running = asyncio.create_task(run("hang"))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools are named 'book'"):
        Toolbox([book, book])


def test_a_passage_found_twice_keeps_its_number() -> None:
    context = ToolContext(TENANT, sources=[passage(7)])
    assert [context.cite(passage(n)) for n in (1, 2, 1, 7)] == [2, 3, 2, 1]


def test_what_fits_is_not_cut() -> None:
    assert shorten("abc", 3) == "abc"
    assert fit("abc", 3, len) == "abc"


def test_a_text_is_cut_to_a_number_of_tokens() -> None:
    words = "word " * 1000
    cut = fit(words, 50, lambda text: len(text.split()))
    assert cut.startswith("word word")
    assert cut.endswith(CUT_NOTE)
    assert 35 <= len(cut.split()) <= 50


def test_no_room_at_all_leaves_the_note() -> None:
    assert fit("abc " * 100, -5, len) == CUT_NOTE
