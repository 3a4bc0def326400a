"""Finds out what a chat template takes, by rendering short conversations with it.

A template takes a conversation if it does not reject it and all texts come out, in order: templates drop what they do
not know as often as they reject it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeAlias

from inference.errors import InvalidTemplate
from inference.message_fitting import Capabilities, SystemPlace, TemplateMessage, fit
from inference.prompt import ChatMessage, Part, ToolCall

# Renders messages as they are. Raises InvalidTemplate.
Render: TypeAlias = Callable[[Sequence[TemplateMessage], Sequence[Mapping[str, Any]], Capabilities], str]

NAME, DESCRIPTION = "look_up", "tool0text"
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string", "description": "Words."}}, "required": ["q"]}
TOOLS = [{"type": "function", "function": {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}}]
# The beginning of a call in the formats that `agents.parser` parses. Others differ in a key, a mark or the arguments.
CALL = re.compile(
    rf'<tool_call>\s*(\{{|<function={NAME}>\s*<parameter=)|"name": "{NAME}", "parameters"|\[TOOL_CALLS\]'
    rf"|call:{NAME}\{{|to=functions\.{NAME}"
)
ROLE_CHARS = 16  # in front of a text: enough to tell a role from the end of a list of tools

SYSTEM, LATER = ChatMessage("system", "system0text"), ChatMessage("system", "system1text")
ASK, ASK_AGAIN = ChatMessage("user", "user0text"), ChatMessage("user", "user1text")
ANSWER, ANSWER_AGAIN = ChatMessage("assistant", "answer0text"), ChatMessage("assistant", "answer1text")
SILENCE = ChatMessage("assistant", "")
CALLS = [ToolCall(NAME, f'{{"q": "argument{n}text"}}') for n in range(2)]
CALLING, CALLING_AGAIN = (ChatMessage("assistant", "", (call,)) for call in CALLS)
CALLING_TWICE = ChatMessage("assistant", "", tuple(CALLS))
SAYING_AND_CALLING = ChatMessage("assistant", ANSWER.content, (CALLS[0],))
RESULT, RESULT_AGAIN = ChatMessage("tool", "result0text"), ChatMessage("tool", "result1text")


def probe(render: Render) -> Capabilities:
    """Renders about 25 conversations. Everything is left to a template that does not take the simplest of them: a
    request may set the variables without which it fails."""
    for lists, parts in product((False, True), repeat=2):
        can = Capabilities(content_parts=parts, lists_tools=lists)
        if _Probe(render, can).takes(ASK, ANSWER, ASK_AGAIN):
            break
    else:
        return Capabilities(chats=False)
    can = replace(can, alternates=_Probe(render, can).alternates)
    can = replace(can, system=_Probe(render, can).system)
    can = replace(can, empty=_Probe(render, can).takes(ASK, SILENCE, ASK_AGAIN))
    can = replace(can, tools=_Probe(render, can).tools)
    if can.tools:
        probed = _Probe(render, can, TOOLS)
        can = replace(
            can,
            alternates=can.alternates or not probed.takes(ASK, CALLING, RESULT, ASK_AGAIN),
            parallel_calls=probed.takes_fitted(ASK, CALLING_TWICE, RESULT, RESULT_AGAIN, ANSWER),
            text_with_calls=probed.takes_fitted(ASK, SAYING_AND_CALLING, RESULT, ANSWER_AGAIN),
            calls_as_content=probed.takes(ASK, ANSWER, RESULT, ANSWER_AGAIN, ASK_AGAIN),
        )
    return replace(can, begins_with_user=_Probe(render, can, TOOLS if can.tools else ()).begins_with_user)


def openings(render: Render, can: Capabilities) -> frozenset[str]:
    """The markup with which a prompt ends behind a question or a result, where later prompts have the same before the
    answer: then they begin with all of it. Where the template opens a thought and drops it later, they do not."""
    probed = _Probe(render, can, TOOLS if can.tools else ())
    found = [probed.opening_behind(ASK), probed.opening_behind(ASK, CALLING, RESULT)]
    return frozenset(opening for opening in found if opening)


class _Probe:
    """`can` is what is known of the template so far."""

    def __init__(self, render: Render, can: Capabilities, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._render, self._can, self._tools = render, can, tools

    def takes(self, *messages: ChatMessage) -> bool:
        return bool(self._text([TemplateMessage.of(message, Part.HISTORY) for message in messages]))

    def takes_fitted(self, *messages: ChatMessage) -> bool:
        """Whether it takes them after what is known to be needed."""
        return bool(self._fitted(messages))

    @property
    def alternates(self) -> bool:
        return not (self.takes(ASK, ASK_AGAIN) and self.takes(ASK, ANSWER, ANSWER_AGAIN, ASK_AGAIN))

    @property
    def system(self) -> SystemPlace:
        """A system message that is shown as the words of the assistant is not taken."""
        first, other = self._opening(SYSTEM, behind=(ASK,)), self._opening(ANSWER, behind=(ASK,))
        if not self.takes(SYSTEM, ASK, ANSWER, ASK_AGAIN) or first == other:
            return "nowhere"
        later, other = self._opening(LATER, (ASK,)), self._opening(ANSWER, (ASK,))
        return "anywhere" if self.takes(SYSTEM, ASK, ANSWER, LATER, ASK_AGAIN) and later not in ("", other) else "first"

    @property
    def tools(self) -> bool:
        turns = (ASK, CALLING, RESULT, CALLING_AGAIN, RESULT_AGAIN, ANSWER, ASK_AGAIN)
        shown = _Probe(self._render, self._can, TOOLS)
        written = shown._fitted(turns).partition(ASK.content)[2].partition(RESULT.content)[0]
        asked = [shown._fitted((*before, ASK)) for before in ((), (SYSTEM,))]
        return bool(CALL.search(written)) and all(NAME in text and DESCRIPTION in text for text in asked)

    @property
    def begins_with_user(self) -> bool:
        """With tools, some templates take whatever comes first for the user's."""
        system = () if self._can.system == "nowhere" else (SYSTEM,)
        plain = _Probe(self._render, self._can)
        role = plain._opening(ANSWER, system)[-ROLE_CHARS:]
        begins = self.takes(ANSWER, ASK) and self.takes(*system, ANSWER, ASK) and self.takes(*system)
        return not (begins and self._opening(ANSWER, system).endswith(role))

    def opening_behind(self, *messages: ChatMessage) -> str:
        """What follows these messages both at the end of a prompt and before an answer; "" if that differs."""
        last = messages[-1].content
        opening = self._fitted(messages).rpartition(last)[2]
        later = self._fitted((*messages, ANSWER, ASK_AGAIN)).partition(last)[2].partition(ANSWER.content)[0]
        return opening if opening == later else ""

    def _opening(
        self, message: ChatMessage, before: Sequence[ChatMessage] = (), behind: Sequence[ChatMessage] = ()
    ) -> str:
        """What is written in front of the text of a message; "" if the messages are not taken."""
        given = [TemplateMessage.of(each, Part.HISTORY) for each in (*before, message, *behind)]
        text = self._text(given).partition(message.content)[0]
        return text.rpartition(before[-1].content)[2] if before else text

    def _fitted(self, messages: Sequence[ChatMessage]) -> str:
        given = [TemplateMessage.of(message, Part.HISTORY) for message in messages]
        return self._text(fit(given, (), self._can)[0])

    def _text(self, messages: Sequence[TemplateMessage]) -> str:
        """The prompt, or "" if it lacks a text of the messages."""
        try:
            text = self._render(messages, self._tools, self._can)
        except InvalidTemplate:
            return ""
        at = 0
        for word in (word for message in messages for word in _words(message)):
            at = text.find(word, at) + 1
            if not at:
                return ""
        return text


def _words(message: TemplateMessage) -> list[str]:
    arguments = [re.findall(r"\w+text", call.arguments)[0] for call in message.calls]
    return [*(segment.text for segment in message.content if not segment.trusted), *arguments]
