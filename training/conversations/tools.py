"""The tools of one conversation, and the search among them, whose results are passages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.tools.search_documents import search_documents
from training.conversations.builtin import CALCULATOR, CONVERT_UNITS, CURRENT_TIME
from training.conversations.invented import Invented, invent
from training.conversations.names import Names
from training.conversations.passages import NOT_FOUND, passages
from training.conversations.prose import Document
from training.conversations.request import Request, Several, Tool
from training.conversations.scene import call

NOTHING = "No passages found."  # what the tool says
NOTHING_SHARE = 0.12
PASSAGES = (1, 2, 2, 3)  # that a search returns, as shares
WHOLE_SET_SHARE = 0.6  # of the conversations with built-in tools have all of them, as the chat page does
INVENTED = (1, 2, 2, 3, 3, 4)  # tools of a conversation, as shares
DRILL = "drill"  # many tools, each called once
DRILLED = (4, 5, 6, 7, 8)
PAGE = "page"  # documents are searched before each turn, as the chat page has it, so there is no tool for that
PAGE_INVENTED_SHARE = 0.3  # of such conversations have other tools too
_SEARCH = (
    "search the documents: {}",
    "look in the documents: {}",
    "search my documents: {}",
    "check the docs: {}",
    "according to the documents, {}",
)
_TOPIC = (
    "search the documents for {}",
    "look up {} in the documents",
    "find {} in the docs",
    "search for {}",
    "search my documents for {}",
    "what do the documents say about {}",
)


@dataclass(frozen=True, slots=True)
class Search:
    """The server's own search tool. A topic is looked for as it is named, a question as it is asked."""

    prose: Sequence[Document]

    @property
    def name(self) -> str:
        return "search_documents"

    @property
    def schema(self) -> Mapping[str, Any]:
        return search_documents(None, ()).schema  # type: ignore[arg-type]  # only its schema is wanted

    def request(self, names: Names) -> Request:
        found = passages(names, self.prose, names.pick(PASSAGES))
        if names.chance(0.3):
            return self._topic(names)
        question = found.ask(double=False)
        query = question.question[0].lower() + question.question[1:]
        ask = names.pick(_SEARCH).format(query) if names.chance(0.6) else query
        if names.chance(NOTHING_SHARE):
            return Request(ask, call(self.name, {"query": query}), NOTHING, _bare(NOT_FOUND))
        return Request(ask, call(self.name, {"query": query}), found.numbered, _bare(question.answer))

    def several(self, names: Names, count: int) -> Several | None:
        return None

    def _topic(self, names: Names) -> Request:
        """The answer is the sentence of the passage that the topic was taken from."""
        found = passages(names, self.prose, names.pick(PASSAGES))
        candidates = [fact for passage in found.passages for fact in passage.facts]
        if not candidates or names.chance(0.2):
            topic = f"{names.attribute()} of {names.proper()}"
            ask = names.pick(_TOPIC).format(topic)
            return Request(ask, call(self.name, {"query": topic}), NOTHING, _bare(NOT_FOUND))
        number, passage = names.pick([(i, p) for i, p in enumerate(found.passages, 1) if p.facts])
        fact = passage.facts[0]
        topic = names.pick(fact.questions)
        topic = topic[0].lower() + topic[1:]
        ask = names.pick(_SEARCH).format(topic)
        return Request(ask, call(self.name, {"query": topic}), found.numbered, f"{fact.statement} [{number}]")


def _bare(answer: str) -> str:
    return answer.removesuffix(".")


@dataclass(frozen=True, slots=True)
class Offered:
    """In the order of the prompt."""

    tools: tuple[Tool, ...]

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        return [tool.schema for tool in self.tools]

    @property
    def invented(self) -> list[Invented]:
        return [tool for tool in self.tools if isinstance(tool, Invented)]

    @property
    def answering(self) -> list[Tool]:
        """Those with one short result: several of them fit one answer."""
        return [tool for tool in self.tools if not isinstance(tool, Search)]

    def has(self, *names: str) -> bool:
        return set(names) <= {tool.name for tool in self.tools}


def offered(names: Names, prose: Sequence[Document], kind: str) -> Offered:
    """`kind`: built-in, invented, mixed, drill or page."""
    small: list[Tool] = [CALCULATOR, CURRENT_TIME, CONVERT_UNITS]
    own = [*small, Search(prose)]
    if kind == "built-in":
        if names.chance(WHOLE_SET_SHARE):
            return Offered(tuple(own))
        return Offered(tuple(names.random.sample(own, names.random.randint(1, 4))))
    made: dict[str, Tool] = {}
    if kind == PAGE:
        made = {tool.name: tool for tool in (small if names.chance(WHOLE_SET_SHARE) else names.random.sample(small, 2))}
        if not names.chance(PAGE_INVENTED_SHARE):
            return Offered(tuple(made.values()))
    elif kind == "mixed":
        made = {tool.name: tool for tool in names.random.sample(own, names.random.randint(1, 3))}
    for _ in range(names.pick(DRILLED if kind == DRILL else INVENTED)):
        tool = invent(names)
        made.setdefault(tool.name, tool)
    tools = list(made.values())
    names.random.shuffle(tools)
    return Offered(tuple(tools))
