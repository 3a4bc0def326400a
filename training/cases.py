"""What the evaluation asks: conversations of the held-out split, cut where the model writes, and what is right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from agents.message import FunctionCall
from inference.prompt import ChatMessage, ToolCall
from training.conversations import builtin, dialogue
from training.conversations.generator import Generator
from training.conversations.names import Names
from training.conversations.passages import NOT_FOUND, asked, passages
from training.conversations.scene import Scene
from training.conversations.talk import TALK, unknown
from training.conversations.tools import PAGE, Offered, Search

_MARK = re.compile(r" ?\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model wrote, as the platform's parser reads it."""

    text: str
    calls: tuple[FunctionCall, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """The model has to write each message of `at`; all the others are given to it. `values` must be told then."""

    scene: Scene
    at: tuple[int, ...]
    values: tuple[str, ...] = ()

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return self.scene.schemas

    def prompt(self, at: int) -> list[ChatMessage]:
        return self.scene.messages[:at]

    def expected(self, at: int) -> ChatMessage:
        return self.scene.messages[at]


Judge: TypeAlias = Callable[[ChatMessage, Reply], dict[str, bool]]
Cases: TypeAlias = Callable[[Generator], Iterator[Case]]
Turn: TypeAlias = Callable[[Names, Scene, Offered], None]


@dataclass(frozen=True, slots=True)
class Category:
    """`cases` never ends. A case is right when each of its messages is."""

    name: str
    cases: Cases
    judge: Judge

    def judged(self, case: Case, at: int, reply: Reply) -> dict[str, bool]:
        verdict = self.judge(case.expected(at), reply)
        if case.values:
            told = not reply.calls and all(_tells(reply.text, value) for value in case.values)
            verdict = {"right values": told, **verdict}
        return verdict


def calls_right(expected: ChatMessage, reply: Reply) -> dict[str, bool]:
    wanted, got = _calls(expected.tool_calls), _calls(reply.calls)
    return {
        "right tools": got is not None and wanted is not None and [n for n, _ in got] == [n for n, _ in wanted],
        "names and arguments exact": got is not None and got == wanted,
    }


def _calls(calls: Sequence[ToolCall | FunctionCall]) -> list[tuple[str, Any]] | None:
    try:
        return [(call.name, json.loads(call.arguments)) for call in calls]
    except ValueError:
        return None


def told(expected: ChatMessage, reply: Reply) -> dict[str, bool]:
    return {"exact": not reply.calls and reply.text.strip() == expected.content}


def error_told(expected: ChatMessage, reply: Reply) -> dict[str, bool]:
    error = expected.content.partition(" failed: ")[2].rstrip(".")
    return {"reported": not reply.calls and error in reply.text}


def cited(expected: ChatMessage, reply: Reply) -> dict[str, bool]:
    """The value is right when every sentence of the expected answer is there, whole."""
    sentences = [part.strip(" .") for part in _MARK.split(expected.content)[::2] if part.strip(" .")]
    text = " ".join(_MARK.sub("", reply.text).split())
    value = all(sentence in text for sentence in sentences)
    citation = sorted(_MARK.findall(reply.text)) == sorted(_MARK.findall(expected.content))
    return {"right value": value, "right citation": citation, "both": value and citation}


def declined(expected: ChatMessage, reply: Reply) -> dict[str, bool]:
    return {"declined": NOT_FOUND.rstrip(".") in reply.text}


def _with_tools(kind: str, turn: Turn, fits: Callable[[Scene], bool]) -> Cases:
    """One turn with tools, asked for its calls."""

    def cases(generator: Generator) -> Iterator[Case]:
        while True:
            scene, tools = generator.scene(kind)
            if tools is None or not _wide(kind, tools):
                continue
            turn(generator.names, scene, tools)
            if fits(scene):
                yield Case(scene, tuple(i for i, message in enumerate(scene.messages) if message.tool_calls))

    return cases


def _wide(kind: str, tools: Offered) -> bool:
    """All tools of the server, or at least two to choose from."""
    return len(tools.tools) >= (4 if kind == "built-in" else 2)


def _answers(turn: Turn, fits: Callable[[Scene], bool]) -> Cases:
    """One turn with tools, asked for the answer at its end."""

    def cases(generator: Generator) -> Iterator[Case]:
        while True:
            scene, tools = generator.scene(generator.names.pick(("built-in", "invented")))
            if tools is None or any(isinstance(tool, Search) for tool in tools.tools) or not tools.tools:
                continue
            turn(generator.names, scene, tools)
            if fits(scene):
                yield Case(scene, (len(scene.messages) - 1,), tuple(_told_values(scene)))

    return cases


def _told_values(scene: Scene) -> Iterator[str]:
    """What tools returned, as far as the last message tells it."""
    for message in scene.messages:
        if message.role == "tool" and not message.content.startswith("Error: "):
            yield from (value for value in _returned(message.content) if _tells(scene.messages[-1].content, value))


def _returned(result: str) -> Iterator[str]:
    try:
        told = json.loads(result)
    except ValueError:
        told = result
    parts = list(told.values()) if isinstance(told, dict) else [told]
    for part in parts:
        yield from (str(item) for item in (part if isinstance(part, list) else [part]))


def _tells(text: str, value: str) -> bool:
    """Whether it is there as a whole, not as a part of a longer word or number."""
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def _documents(*, answerable: bool, double: bool = False, kind: str = "documents") -> Cases:
    def cases(generator: Generator) -> Iterator[Case]:
        while True:
            found = passages(generator.names, generator.prose)
            one = found.ask(answerable=answerable, double=double)
            if one.answerable != answerable or (answerable and (len(_MARK.findall(one.answer)) == 2) != double):
                continue
            scene, _ = generator.scene(kind)
            scene.user(found.prompt(asked(generator.names, one.question)))
            scene.answer(one.answer)
            yield Case(scene, (len(scene.messages) - 1,))

    return cases


def _calls_behind_passages(generator: Generator) -> Iterator[Case]:
    for case in _with_tools(PAGE, dialogue.single, _calls_once)(generator):
        generator.distract(case.scene, case.at[0] - 1)
        yield case


def _unknown(generator: Generator) -> Iterator[Case]:
    while True:
        scene, _ = generator.scene(PAGE)
        unknown(generator.names, scene)
        if len(scene.messages) > 1:
            yield Case(scene, (len(scene.messages) - 1,))


def first_questions(generator: Generator) -> Iterator[Case]:
    """What newcomers try. Nothing of it is held out: small numbers and known cities are soon all seen."""
    while True:
        scene, tools = generator.scene(BUILT_IN)
        if tools is None or not _wide(BUILT_IN, tools):
            continue
        request = generator.names.pick((builtin.first_sum, builtin.first_clock))(generator.names)
        scene.user(request.ask)
        scene.calls(request.call)
        yield Case(scene, (len(scene.messages) - 1,))


def small_talk(generator: Generator) -> Iterator[Case]:
    """The first input of each sort, without anything that is filled in."""
    while True:
        for inputs, answers in TALK:
            if "{" not in inputs[0]:
                scene, _ = generator.scene("talk")
                scene.user(inputs[0][0].upper() + inputs[0][1:])
                scene.answer(answers[0])
                yield Case(scene, (len(scene.messages) - 1,))


def _calls_made(scene: Scene) -> list[int]:
    return [len(message.tool_calls) for message in scene.messages if message.tool_calls]


def _failed(scene: Scene) -> bool:
    return " failed: " in scene.messages[-1].content


def _calls_twice(scene: Scene) -> bool:
    return _calls_made(scene) == [1, 1]


def _calls_once(scene: Scene) -> bool:
    return _calls_made(scene) == [1]


def _calls_several(scene: Scene) -> bool:
    return max(_calls_made(scene)) > 1


def _succeeded(scene: Scene) -> bool:
    return not _failed(scene)


BUILT_IN, UNSEEN = "built-in", "invented"
SMALL_TALK = Category("small talk", small_talk, told)
CATEGORIES = (
    Category("built-in tool, one call", _with_tools(BUILT_IN, dialogue.single, _calls_once), calls_right),
    Category("unseen tool, one call", _with_tools(UNSEEN, dialogue.single, _calls_once), calls_right),
    Category("parallel calls, built-in", _with_tools(BUILT_IN, dialogue.parallel, _calls_several), calls_right),
    Category("parallel calls, unseen", _with_tools(UNSEEN, dialogue.parallel, _calls_several), calls_right),
    Category("sequential, built-in", _with_tools(BUILT_IN, dialogue.sequential, _calls_twice), calls_right),
    Category("sequential, unseen", _with_tools(UNSEEN, dialogue.sequential, _calls_twice), calls_right),
    Category("answer after a result", _answers(dialogue.single, _succeeded), told),
    Category("answer after an error", _answers(dialogue.failing, _failed), error_told),
    Category("documents, one passage", _documents(answerable=True), cited),
    Category("documents, two passages", _documents(answerable=True, double=True), cited),
    Category("documents, unanswerable", _documents(answerable=False), declined),
    Category("documents and tools, a call", _calls_behind_passages, calls_right),
    Category("documents and tools, one passage", _documents(answerable=True, kind=PAGE), cited),
    Category("documents and tools, unanswerable", _documents(answerable=False, kind=PAGE), declined),
    Category("documents and tools, neither helps", _unknown, told),
    Category("first questions", first_questions, calls_right),
    SMALL_TALK,
)
