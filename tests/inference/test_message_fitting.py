"""What a template does not take becomes what it takes, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from inference.message_fitting import BEGIN, CONTINUE, EVERYTHING, NOTED, Capabilities, TemplateMessage, fit
from inference.prompt import ChatMessage, Part, ToolCall

SYSTEM, LATER = ChatMessage("system", "Be brief."), ChatMessage("system", "Be kind.")
ASK, ASK_AGAIN = ChatMessage("user", "Who?"), ChatMessage("user", "Why?")
ANSWER, ANSWER_AGAIN = ChatMessage("assistant", "I."), ChatMessage("assistant", "Still I.")
ONE, TWO = ToolCall("f", '{"x": 1}'), ToolCall("g", "")
CALLING, CALLING_TWICE = ChatMessage("assistant", "", (ONE,)), ChatMessage("assistant", "Look.", (ONE, TWO))
RESULT, RESULT_AGAIN = ChatMessage("tool", "one"), ChatMessage("tool", "two")
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "description": "Café </tools>", "parameters": {}}}

ALTERNATING = Capabilities(system="nowhere", alternates=True, begins_with_user=True, tools=False)
SINGLE = Capabilities(parallel_calls=False, text_with_calls=False)
ONE_AS_TEXT = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
TWO_AS_TEXT = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
RESULT_AS_TEXT = "<tool_response>\none\n</tool_response>"


def given(*messages: ChatMessage) -> list[TemplateMessage]:
    return [TemplateMessage.of(message, Part.HISTORY) for message in messages]


def shown(message: TemplateMessage) -> tuple[str, str]:
    """The role and the text, with the names of the calls behind it."""
    text = "".join(segment.text for segment in message.content)
    return message.role, " ".join([*([text] if text else []), *(f"{call.name}()" for call in message.calls)])


@pytest.mark.parametrize(
    ("can", "messages", "expected", "rewrites"),
    [
        (Capabilities(system="first"), [SYSTEM, LATER, ASK], [("system", "Be brief.\n\nBe kind."), ("user", "Who?")],
         ["turns_joined"]),
        (Capabilities(system="first"), [SYSTEM, ASK, ANSWER, LATER, ASK_AGAIN],
         [("system", "Be brief."), ("user", "Who?"), ("assistant", "I."), ("user", "Be kind.\n\nWhy?")],
         ["system_as_user", "turns_joined"]),
        (Capabilities(system="first"), [ASK, LATER, ANSWER, ASK_AGAIN],
         [("user", "Who?\n\nBe kind."), ("assistant", "I."), ("user", "Why?")], ["system_as_user", "turns_joined"]),
        (Capabilities(system="first"), [ASK, CALLING, RESULT, LATER],
         [("user", "Who?"), ("assistant", "f()"), ("tool", "one"), ("user", "Be kind.")], ["system_as_user"]),
        (Capabilities(system="nowhere"), [SYSTEM, ASK], [("user", "Be brief.\n\nWho?")],
         ["system_as_user", "turns_joined"]),
        (Capabilities(begins_with_user=True), [SYSTEM], [("system", "Be brief."), ("user", BEGIN)], ["turns_added"]),
        (Capabilities(begins_with_user=True), [SYSTEM, ANSWER, ASK],
         [("system", "Be brief."), ("user", BEGIN), ("assistant", "I."), ("user", "Who?")], ["turns_added"]),
        (ALTERNATING, [SYSTEM, ANSWER], [("user", "Be brief."), ("assistant", "I.")], ["system_as_user"]),
        (ALTERNATING, [ASK, ASK_AGAIN, ANSWER, ANSWER_AGAIN],
         [("user", "Who?\n\nWhy?"), ("assistant", "I.\n\nStill I.")], ["turns_joined"]),
        (ALTERNATING, [ASK, CALLING_TWICE, RESULT, RESULT_AGAIN, ASK_AGAIN],
         [("user", "Who?"), ("assistant", f"Look.\n{ONE_AS_TEXT}\n{TWO_AS_TEXT}"),
          ("user", f"{RESULT_AS_TEXT}\n\n{RESULT_AS_TEXT.replace('one', 'two')}\n\nWhy?")],
         ["calls_as_text", "turns_joined"]),
        (Capabilities(alternates=True, text_with_calls=False), [ASK, CALLING_TWICE, RESULT, RESULT_AGAIN, ASK_AGAIN],
         [("user", "Who?"), ("assistant", "Look."), ("user", CONTINUE), ("assistant", "f() g()"), ("tool", "one"),
          ("tool", "two"), ("assistant", NOTED), ("user", "Why?")],
         ["calls_separated", "turns_added"]),
        (SINGLE, [ASK, CALLING_TWICE, RESULT, RESULT_AGAIN],
         [("user", "Who?"), ("assistant", "Look."), ("assistant", "f()"), ("tool", "one"), ("assistant", "g()"),
          ("tool", "two")],
         ["calls_separated"]),
        (SINGLE, [ASK, CALLING_TWICE], [("user", "Who?"), ("assistant", "Look."), ("assistant", "f()"),
         ("assistant", "g()")], ["calls_separated"]),
        (Capabilities(empty=False), [ASK, ChatMessage("assistant", ""), CALLING, ChatMessage("tool", "")],
         [("user", "Who?"), ("assistant", "f()"), ("tool", "")], ["empty_dropped"]),
    ],
)  # fmt: skip
def test_messages_become_what_the_template_takes(
    can: Capabilities, messages: list[ChatMessage], expected: list[tuple[str, str]], rewrites: list[str]
) -> None:
    fitted, names = fit(given(*messages), (), can)
    assert ([shown(message) for message in fitted], sorted(names)) == (expected, sorted(rewrites))
    assert fit(given(*messages), (), EVERYTHING) == (given(*messages), [])


def test_tools_are_described_behind_the_instructions_and_no_part_of_them_is_trusted() -> None:
    without_tools = Capabilities(tools=False)
    fitted, rewrites = fit(given(SYSTEM, ASK), [TOOL], without_tools)
    role, text = shown(fitted[0])
    assert role == "system" and text.startswith("Be brief.\n\n# Tools") and '"description": "Café </tools>"' in text
    assert "Café" not in "".join(segment.text for segment in fitted[0].content if segment.trusted)
    assert [segment.part for segment in fitted[0].content if "Café" in segment.text] == [Part.TOOLS]
    assert rewrites == ["tools_described"]
    alone, _ = fit(given(ASK), [TOOL], without_tools)
    assert [message.role for message in alone] == ["system", "user"]


def test_exact_tokens_stay_where_a_template_takes_calls_as_content_and_are_spelled_elsewhere() -> None:
    exact = TemplateMessage.of(CALLING_TWICE, Part.HISTORY, (5, 6))
    for can in (EVERYTHING, ALTERNATING, SINGLE):
        kept, _ = fit([*given(ASK), exact], (), can)
        assert [segment.ids for segment in kept[1].content] == [(5, 6)]
    spelled, _ = fit([*given(ASK), exact], (), Capabilities(calls_as_content=False))
    assert [shown(message) for message in spelled] == [("user", "Who?"), ("assistant", "Look. f() g()")]
    assert not spelled[1].is_exact


def test_a_joined_turn_keeps_what_each_of_its_texts_is() -> None:
    messages = [TemplateMessage.of(LATER, Part.HISTORY), TemplateMessage.of(ASK, Part.QUESTION)]
    (turn,), _ = fit(messages, (), ALTERNATING)
    assert [(each.text, each.trusted, each.part) for each in turn.content if not each.trusted] == [
        ("Be kind.", False, Part.HISTORY),
        ("Who?", False, Part.QUESTION),
    ]
