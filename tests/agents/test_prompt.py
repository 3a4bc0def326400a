from __future__ import annotations

from dataclasses import replace

import pytest

from agents.errors import InvalidTurn
from agents.message import FileSearchCall, FunctionCall, FunctionCallOutput, Item, Message
from agents.prompt import CONCLUDE, UNANSWERED, assemble, numbered, question
from agents.turn import AnswerFormat, ToolChoice, Turn
from inference.prompt import ChatMessage, ToolCall
from tests.agents.turns import TENANT, asked, passage, user


def messages(*history: Item) -> list[ChatMessage]:
    return assemble(Turn(TENANT, (), history))


def test_history_stands_before_the_input_and_output_behind_it() -> None:
    turn = Turn(TENANT, (user("two"),), (user("one"), Message("assistant", "1")))
    assert assemble(turn, [Message("assistant", "2")]) == [
        ChatMessage("user", "one"),
        ChatMessage("assistant", "1"),
        ChatMessage("user", "two"),
        ChatMessage("assistant", "2"),
    ]


def test_instructions_and_leading_system_messages_are_one_system_message() -> None:
    turn = Turn(TENANT, (user("Hi"),), (Message("developer", "Be brief."),), instructions="You are Ada.")
    assert assemble(turn) == [ChatMessage("system", "You are Ada.\n\nBe brief."), ChatMessage("user", "Hi")]


def test_a_later_developer_message_keeps_its_place_as_system() -> None:
    assert messages(user("Hi"), Message("developer", "Stop.")) == [
        ChatMessage("user", "Hi"),
        ChatMessage("system", "Stop."),
    ]


def test_text_and_calls_of_one_step_are_one_message_with_the_results_behind_it() -> None:
    assert messages(
        user("Go"),
        Message("assistant", "Let me see."),
        FunctionCall("c1", "f", '{"x": 1}'),
        FunctionCall("c2", "g", "{}"),
        FunctionCallOutput("c1", "one"),
        FunctionCallOutput("c2", "two"),
        Message("assistant", "Done."),
    )[1:] == [
        ChatMessage("assistant", "Let me see.", (ToolCall("f", '{"x": 1}'), ToolCall("g", "{}"))),
        ChatMessage("tool", "one"),
        ChatMessage("tool", "two"),
        ChatMessage("assistant", "Done."),
    ]


def test_results_stand_in_the_order_of_the_calls() -> None:
    shown = messages(
        user("Go"),
        FunctionCall("c1", "f", "{}"),
        FunctionCall("c2", "g", "{}"),
        FunctionCallOutput("c2", "two"),
        FunctionCallOutput("c1", "one"),
    )
    assert [message.content for message in shown if message.role == "tool"] == ["one", "two"]


def test_a_call_behind_a_result_begins_a_new_step() -> None:
    shown = messages(
        user("Go"),
        FunctionCall("c1", "f", "{}"),
        FunctionCallOutput("c1", "one"),
        FunctionCall("c2", "g", "{}"),
        FunctionCallOutput("c2", "two"),
    )
    assert [message.role for message in shown] == ["user", "assistant", "tool", "assistant", "tool"]


def test_call_ids_may_be_used_again_later() -> None:
    step: list[Item] = [FunctionCall("call_0", "f", "{}"), FunctionCallOutput("call_0", "out")]
    assert [message.role for message in messages(user("Go"), *step, user("Again"), *step)].count("tool") == 2


def test_a_call_that_nobody_answered_says_so() -> None:
    shown = messages(user("Go"), FunctionCall("c1", "f", "{}"), user("Never mind"))
    assert shown[2:] == [ChatMessage("tool", UNANSWERED), ChatMessage("user", "Never mind")]


def test_an_output_without_a_call_is_refused() -> None:
    with pytest.raises(InvalidTurn, match="call_id 'c9'"):
        messages(user("Go"), FunctionCallOutput("c9", "?"))


def test_nothing_to_answer_is_refused() -> None:
    with pytest.raises(InvalidTurn, match="input is empty"):
        assemble(Turn(TENANT, (FileSearchCall(),)))


def test_passages_stand_in_the_newest_user_message_only() -> None:
    turn = Turn(TENANT, (user("How?"),), (user("Hi"), Message("assistant", "Hello.")))
    found = [passage(1, title="Guide"), passage(2, text="Two\n\n\n  lines. ", title="Notes")]
    assert assemble(turn, passages=found) == [
        ChatMessage("user", "Hi"),
        ChatMessage("assistant", "Hello."),
        ChatMessage("user", "Passages:\n[1] Guide: Fact 1.\n[2] Notes: Two lines.\n\nQuestion: How?", passage_chars=52),
    ]


def test_passages_keep_their_place_in_later_steps() -> None:
    step: list[Item] = [FunctionCall("c1", "f", "{}"), FunctionCallOutput("c1", "one")]
    first = assemble(asked("How?"), passages=[passage(1)])
    assert assemble(asked("How?"), step, [passage(1)])[: len(first)] == first


def test_the_last_result_tells_that_the_budget_is_spent() -> None:
    step: list[Item] = [FunctionCall("c1", "f", "{}"), FunctionCallOutput("c1", "one")]
    assert assemble(asked(), step, conclude=True)[-1] == ChatMessage("tool", f"one\n{CONCLUDE}")


def test_without_a_result_a_system_message_tells_it() -> None:
    assert assemble(asked(), conclude=True)[-1] == ChatMessage("system", CONCLUDE)


@pytest.mark.parametrize(("choice", "told"), [("required", "Call a tool"), ("look_up", "Call the tool look_up")])
def test_a_demanded_call_is_asked_for(choice: ToolChoice, told: str) -> None:
    assert told in assemble(asked(tool_choice=choice))[0].content


def test_nothing_is_said_in_place_of_the_model_s_own_system_message() -> None:
    assert assemble(asked("Hi"), default_system=lambda: "I am Ada.") == [ChatMessage("user", "Hi")]


def test_hints_follow_the_model_s_own_system_message() -> None:
    required = asked("Hi", tool_choice="required")
    [system, _] = assemble(required, default_system=lambda: "I am Ada.")
    assert system == ChatMessage("system", "I am Ada.\n\nCall a tool before you answer.")
    [system, _] = assemble(replace(required, instructions="Be brief."), default_system=lambda: "I am Ada.")
    assert system.content == "Be brief.\n\nCall a tool before you answer."


def test_hints_can_be_left_out() -> None:
    silent = asked("Hi", tool_choice="required", answer_format=AnswerFormat({"type": "object"}, "text"), hints=False)
    assert assemble(silent, default_system=lambda: "I am Ada.") == [ChatMessage("user", "Hi")]


def test_the_question_is_the_newest_user_message() -> None:
    assert question(Turn(TENANT, (user(" new "), Message("developer", "x")), (user("old"),))) == "new"
    assert question(Turn(TENANT, (Message("assistant", "x"),))) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("One sentence\nin two lines.\n\nAnother.", "One sentence in two lines. Another."),
        ("A list:\n\n- one\n  goes on\n- two\n1. three", "A list:\n- one goes on\n- two\n1. three"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "| a | b |\n|---|---|\n| 1 | 2 |"),
        ("| a |\n|---|\n| 1 |\n\nBehind\nit.\n\nMore.", "| a |\n|---|\n| 1 |\nBehind it. More."),
        ("- one\n  goes on\n\nBehind it.\n\n# Title\n\nText.", "- one goes on\nBehind it.\n# Title\nText."),
        ("```python\nif x:\n    y()\n\nz()\n```", "```python\nif x:\n    y()\nz()\n```"),
        ("    indented\n        code", "    indented\n        code"),
    ],
)
def test_paragraphs_flow_and_what_has_lines_keeps_them(text: str, shown: str) -> None:
    assert numbered([(1, replace(passage(1), title="T", text=text))]) == f"[1] T: {shown}"


def test_the_first_result_of_a_call_holds() -> None:
    """Clients also answer a call that was broken, and that this server has answered."""
    call, first, second = (
        FunctionCall("call_1", "double", "{}"),
        FunctionCallOutput("call_1", "Error: broken"),
        FunctionCallOutput("call_1", "unsupported call"),
    )
    messages = assemble(Turn(TENANT, (user("x"), call, first, second, user("y"))))
    assert [message.content for message in messages] == ["x", "", "Error: broken", "y"]
