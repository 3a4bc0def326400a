"""What a chat template takes, and a conversation rewritten into one that it takes. Pure.

Only what the template cannot take is rewritten, and each message depends on earlier ones alone. So a longer
conversation begins with the rewritten shorter one, but for the end of its last turn, and its prefix stays cached.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import Any, Literal, TypeAlias

from inference.frozen import dataclass
from inference.grammar.calls import CLOSE, OPEN
from inference.prompt import ChatMessage, Part, PlacedPicture, Segment, ToolCall

SystemPlace: TypeAlias = Literal["anywhere", "first", "nowhere"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a template takes, and shows in full: see `template_probe`. The defaults are those of one that takes
    everything."""

    chats: bool = True  # it takes the simplest conversation
    system: SystemPlace = "anywhere"  # where it takes system messages
    alternates: bool = False  # it takes turns of user and assistant only in alternation
    begins_with_user: bool = False  # it takes no turn of the assistant before the first one of the user
    empty: bool = True  # it takes messages without content
    content_parts: bool = False  # it takes contents as lists of parts only
    lists_tools: bool = False  # it goes through a list of tools, even if there are none
    tools: bool = True  # it shows tools, calls and results, and the calls in a format that we parse
    parallel_calls: bool = True  # it takes several calls in one message
    text_with_calls: bool = True  # it takes content beside calls
    calls_as_content: bool = True  # it takes results of calls that are part of the content

    @property
    def least(self) -> Capabilities:
        """What is left if messages are rejected nevertheless. Tools stay as they are: the parser depends on them."""
        return replace(
            self, system="nowhere", alternates=True, begins_with_user=True, empty=False, parallel_calls=False
        )

    @property
    def turns(self) -> str:
        """The order of turns, in words."""
        if self.alternates:
            return "alternating"
        return "the user first" if self.begins_with_user else "any order"

    @property
    def tool_format(self) -> str:
        """How tools are shown, in words."""
        return "of the template" if self.tools else "described by the worker"

    def __str__(self) -> str:
        if not self.chats:
            return "no conversation"
        tools = self.tool_format if self.parallel_calls else f"{self.tool_format}, one call at a time"
        return f"system messages {self.system}; turns: {self.turns}; tools: {tools}"


EVERYTHING = Capabilities()


RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"
# Turns that nobody wrote, where a template insists on one. `BEGIN` also answers the question what to do with
# instructions alone.
BEGIN, CONTINUE, NOTED = "Begin.", "Continue.", "OK."
# What is described here is the format of Hermes and Qwen, which many models without tools have seen in training.
DESCRIPTION = (
    "# Tools\n\nYou can call functions to answer the user. These are their signatures, one in a line:\n<tools>",
    "\n</tools>\n\nTo call a function, write a JSON object with its name and arguments between these marks:\n"
    f'{OPEN}\n{{"name": <function-name>, "arguments": <object of arguments>}}\n{CLOSE}\n'
    f"Its result follows between {RESULT_OPEN} and {RESULT_CLOSE}.",
)


@dataclass(frozen=True, slots=True)
class TemplateMessage:
    """A message for a template. Trusted segments of it are the worker's own words."""

    role: str
    content: tuple[Segment, ...] = ()
    reasoning: tuple[Segment, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    part: Part = Part.HISTORY
    joins: bool = False  # its neighbours of the same role are joined with it

    @classmethod
    def of(cls, message: ChatMessage, part: Part, ids: tuple[int, ...] | None = None) -> TemplateMessage:
        """`ids`, if present, are the exact tokens of the whole message."""
        content = Segment(message.content, False, ids, part, message.passage_chars)
        reasoning = Segment(message.reasoning, False, None, part)
        is_there = message.content or message.pictures or ids is not None
        return cls(
            message.role,
            _with_pictures(content, message.pictures) if is_there else (),
            (reasoning,) if message.reasoning and ids is None else (),
            message.tool_calls,
            part,
        )

    @property
    def is_exact(self) -> bool:
        """Whether its content consists of exact tokens, which contain its calls."""
        return any(segment.ids is not None for segment in self.content)

    def with_(self, other: TemplateMessage) -> TemplateMessage:
        """This turn and the one behind it as one."""
        content, reasoning = _joined(self.content, other.content), _joined(self.reasoning, other.reasoning)
        return replace(self, content=content, reasoning=reasoning, joins=self.joins or other.joins)

    @property
    def spelled(self) -> TemplateMessage:
        """The same message without exact tokens."""
        text = (replace(segment, ids=None) for segment in self.content if segment.text or segment.picture)
        return replace(self, content=tuple(text))


def fit(
    messages: Sequence[TemplateMessage], tools: Sequence[Mapping[str, Any]], can: Capabilities
) -> tuple[list[TemplateMessage], list[str]]:
    """The conversation for a template with these capabilities, and the names of the rewrites that this took."""
    fitting = _Fitting(can)
    for message in fitting.with_tools(messages, tools):
        fitting.add(message)
    fitting.end()
    return fitting.messages, list(fitting.rewrites)


class _Fitting:
    def __init__(self, can: Capabilities) -> None:
        self.messages: list[TemplateMessage] = []
        self.rewrites: dict[str, None] = {}
        self._can = can
        self._speaker = ""  # of the last turn; calls and their results are no turns

    def with_tools(
        self, messages: Sequence[TemplateMessage], tools: Sequence[Mapping[str, Any]]
    ) -> Iterator[TemplateMessage]:
        """Tools, calls and results as the template takes them, or else as text."""
        rest = deque(messages)
        if tools and not self._can.tools:
            leads = bool(rest) and rest[0].role == "system"
            system = rest.popleft() if leads else TemplateMessage("system", part=Part.SYSTEM)
            yield replace(system, content=_joined(system.content, _description(tools)))
            self.rewrites["tools_described"] = None
        while rest:
            message = rest.popleft()
            if not message.calls and message.role != "tool":
                yield message
            elif not self._can.tools:
                self.rewrites["calls_as_text"] = None
                yield _result_as_text(message) if message.role == "tool" else _calls_as_text(message)
            elif message.calls and not (message.is_exact and self._can.calls_as_content):
                yield from self._separated(message.spelled, rest)
            else:
                yield message

    def _separated(self, message: TemplateMessage, rest: deque[TemplateMessage]) -> Iterator[TemplateMessage]:
        """Content before the calls, and each call before its own result, where the template takes no more at once."""
        if message.content and not self._can.text_with_calls:
            self.rewrites["calls_separated"] = None
            yield replace(message, calls=())
            message = replace(message, content=(), reasoning=())
        if len(message.calls) == 1 or self._can.parallel_calls:
            yield message
            return
        self.rewrites["calls_separated"] = None
        for call in message.calls:
            yield replace(message, calls=(call,))
            message = replace(message, content=(), reasoning=())
            if rest and rest[0].role == "tool":
                yield rest.popleft()

    def add(self, message: TemplateMessage) -> None:
        can = self._can
        if message.role == "system" and (can.system != "anywhere" or can.alternates):
            message = self._placed(message)
        if not (can.empty or message.content or message.calls or message.role == "tool"):
            self.rewrites["empty_dropped"] = None
            return
        last = self.messages[-1] if self.messages else None
        if last is not None and self._are_one(last, message):
            self.messages[-1] = last.with_(message)
            self.rewrites["turns_joined"] = None
            return
        self._make_way(message.role)
        self._append(message)

    def _placed(self, message: TemplateMessage) -> TemplateMessage:
        """A system message where the template takes it: the first ones as one, all others as words of the user."""
        leads = all(each.role == "system" for each in self.messages)
        if leads and self._can.system != "nowhere":
            return replace(message, joins=True)
        self.rewrites["system_as_user"] = None
        return replace(message, role="user", joins=True)

    def _are_one(self, last: TemplateMessage, message: TemplateMessage) -> bool:
        if last.role != message.role or message.role == "tool" or last.calls or message.calls:
            return False
        return self._can.alternates or last.joins or message.joins

    def _make_way(self, role: str) -> None:
        """Add the turn that has to precede one of this role."""
        can = self._can
        if role == "user" and can.alternates and self._speaker == "user":
            self._fill("assistant", NOTED)
        elif role == "assistant" and not self._speaker and (can.alternates or can.begins_with_user):
            self._fill("user", BEGIN)
        elif role == "assistant" and can.alternates and self._speaker == "assistant":
            self._fill("user", CONTINUE)

    def end(self) -> None:
        if not self._speaker and (self._can.alternates or self._can.begins_with_user):
            self._fill("user", BEGIN)

    def _fill(self, role: str, words: str) -> None:
        self.rewrites["turns_added"] = None
        self._append(TemplateMessage(role, (Segment(words, trusted=True),)))

    def _append(self, message: TemplateMessage) -> None:
        self.messages.append(message)
        if message.role == "user" or (message.role == "assistant" and not message.calls):
            self._speaker = message.role


def _joined(before: tuple[Segment, ...], behind: tuple[Segment, ...], between: str = "\n\n") -> tuple[Segment, ...]:
    return (*before, Segment(between, trusted=True), *behind) if before and behind else before or behind


def _with_pictures(content: Segment, pictures: Sequence[PlacedPicture]) -> tuple[Segment, ...]:
    """The text, cut where its pictures are."""
    if not pictures:
        return (content,)
    segments = []
    for begin, end in pairwise([0, *(placed.at for placed in pictures), len(content.text)]):
        found = max(0, min(content.passage_chars, end) - begin)
        segments.append(replace(content, text=content.text[begin:end], passage_chars=found))
    shown = [Segment("", False, part=content.part, picture=placed.picture) for placed in pictures]
    in_turn = (segment for pair in zip_longest(segments, shown) for segment in pair if segment)
    return tuple(segment for segment in in_turn if segment.text or segment.picture)


def _description(tools: Sequence[Mapping[str, Any]]) -> tuple[Segment, ...]:
    begin, end = (Segment(text, trusted=True) for text in DESCRIPTION)
    schemas = (Segment(f"\n{json.dumps(tool, ensure_ascii=False)}", False, part=Part.TOOLS) for tool in tools)
    return (begin, *schemas, end)


def _calls_as_text(message: TemplateMessage) -> TemplateMessage:
    """Exact tokens are such a text already."""
    content = message.content
    for call in () if message.is_exact else message.calls:
        name, arguments = json.dumps(call.name, ensure_ascii=False), call.arguments.strip() or "{}"
        body = Segment(f'{{"name": {name}, "arguments": {arguments}}}', False, part=message.part)
        marked = (Segment(f"{OPEN}\n", trusted=True), body, Segment(f"\n{CLOSE}", trusted=True))
        content = _joined(content, marked, "\n")
    return replace(message, content=content, calls=())


def _result_as_text(message: TemplateMessage) -> TemplateMessage:
    opening, closing = Segment(f"{RESULT_OPEN}\n", trusted=True), Segment(f"\n{RESULT_CLOSE}", trusted=True)
    return replace(message, role="user", content=(opening, *message.content, closing), joins=True)
