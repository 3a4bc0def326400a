"""A stop string ends the text that people see, wherever the pieces of the answer are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.events import ReasoningDelta, TextDelta
from agents.function_tool import FunctionTool
from agents.reply import StopStrings
from inference.generation import Sampling
from tests.agents.turns import Ran, asked, call, double, run
from tests.scripted import ScriptedModel

THINKS = "<think> </think> <tool_call>"
SAVE = FunctionTool("save", "Save a text.", {"type": "object", "properties": {"q": {"type": "string"}}})


def shown(text: str, strings: Sequence[str]) -> tuple[list[str], StopStrings]:
    stops = StopStrings(strings)
    pieces = []
    for character in text:
        pieces.append(stops.push(character))
        if stops.met is not None:
            break
    return [*pieces, stops.flush()], stops


@given(st.text(alphabet="abc", max_size=30), st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string_and_shows_no_part_of_it(text: str, strings: list[str]) -> None:
    pieces, stops = shown(text, strings)
    ends = [text.find(each) + len(each) for each in strings if each in text]
    if not ends:
        assert "".join(pieces) == text and stops.met is None
        return
    up_to = text[: min(ends)]  # the first stop string to be complete ends it
    assert "".join(pieces) == up_to[: min(up_to.find(each) for each in strings if each in up_to)]
    assert stops.met in strings


def test_what_might_become_a_stop_string_is_held_back_until_it_does_not() -> None:
    assert shown("xENy", ["END"])[0] == ["x", "", "", "ENy", ""]


@pytest.mark.parametrize(("text", "met"), [("a STOP b", "STOP"), ("a END b", "END"), ("a b", None)])
def test_the_stop_string_that_was_met_is_told(text: str, met: str | None) -> None:
    assert shown(text, ["END", "STOP"])[1].met == met


async def answered(reply: str, *stop: str, template: str = THINKS, piece_chars: int = 3, **rest: Any) -> Ran:
    model = ScriptedModel([reply, "Done."], chat_template=template, piece_chars=piece_chars)
    return await run(model, asked(stop=stop, **rest), [double])


PIECES = pytest.mark.parametrize("piece_chars", [1, 3, 1000])


@PIECES
async def test_reasoning_is_not_searched(piece_chars: int) -> None:
    reply = "<think>the sum of the two</think>\n\nIt is the number four, the end."
    ran = await answered(reply, "the", piece_chars=piece_chars)
    thought = "".join(event.text for event in ran.events if isinstance(event, ReasoningDelta))
    assert thought == "the sum of the two" and ran.answer == "It is "
    assert (ran.finished.status, ran.finished.stop_string) == ("completed", "the")


@PIECES
@pytest.mark.parametrize("stop", ["beta", "\n", "}", "<", "name"])
async def test_the_markup_of_calls_is_not_searched(piece_chars: int, stop: str) -> None:
    ran = await answered(call("save", q="alpha beta"), stop, piece_chars=piece_chars, functions=(SAVE,))
    (save,) = ran.calls
    assert (save.arguments, save.status) == ('{"q": "alpha beta"}', "completed")
    assert (ran.finished.status, ran.finished.stop_string) == ("completed", None)


@PIECES
async def test_an_answer_after_a_call_ends_at_its_stop_string(piece_chars: int) -> None:
    model = ScriptedModel([call("double", x=2), "Four, the end, the rest."], piece_chars=piece_chars)
    ran = await run(model, asked(stop=("the",), server_tools=("double",)), [double])
    assert (ran.answer, ran.finished.stop_string) == ("Four, ", "the")


@PIECES
async def test_nothing_that_follows_a_stop_string_counts(piece_chars: int) -> None:
    reply = "Well, END. " + call("save", q="x")
    ran = await answered(reply, "END", piece_chars=piece_chars, functions=(SAVE,))
    assert (ran.answer, ran.calls, ran.finished.stop_string) == ("Well, ", [], "END")


@PIECES
async def test_a_stop_string_does_not_reach_across_a_call(piece_chars: int) -> None:
    ran = await answered("E" + call("save", q="x") + "ND", "END", piece_chars=piece_chars, functions=(SAVE,))
    assert len(ran.calls) == 1 and ran.finished.stop_string is None
    assert [event.text for event in ran.events if isinstance(event, TextDelta)] in (["E", "ND"], ["E", "N", "D"])


@PIECES
async def test_white_space_that_is_not_shown_is_not_searched(piece_chars: int) -> None:
    ran = await answered("<think>Hm.</think>\n\nFirst.\nSecond.", "\n", piece_chars=piece_chars)
    assert (ran.answer, ran.finished.stop_string) == ("First.", "\n")


@PIECES
async def test_an_answer_may_end_before_its_first_character(piece_chars: int) -> None:
    ran = await answered("END of it", "END", piece_chars=piece_chars)
    assert (ran.answer, ran.finished.status, ran.finished.stop_string) == ("", "completed", "END")


async def test_what_replaces_an_empty_answer_ends_at_its_stop_string_too() -> None:
    """No tool may be called: the text of the call is the answer."""
    ran = await answered("<tool_call>one END two", "END")
    assert (ran.answer, ran.finished.stop_string) == ("<tool_call>one ", "END")


async def test_the_model_stops_at_the_token_that_completes_it() -> None:
    model = ScriptedModel(["One, two. " + "And so on. " * 100], piece_chars=1)
    ran = await run(model, asked(stop=("two",)))
    assert ran.finished.usage.output_tokens == len("One, two")
    assert len(model.generations[0].ids) == len("One, two")


async def test_log_probabilities_end_with_the_text() -> None:
    model = ScriptedModel(["One, two, three."], piece_chars=1)
    ran = await run(model, asked(stop=("two",), sampling=Sampling(top_logprobs=0)))
    told = [each.token for event in ran.events if isinstance(event, TextDelta) for each in event.logprobs]
    assert b"".join(told) == b"One, "
