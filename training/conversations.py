"""Trees of conversations: one system message with its tools, and several independent conversations after it.

A tree is read once for all its branches, which saves most of the tokens: the schemas of tools are long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, Literal

from training import builtin, functions, passages, plural, tasks
from training.functions import Call, Function, Request, Tool, spaced, typed
from training.joined import joined, woven
from training.talk import Talk
from training.values import POOLS, Chooser, lines, lowered

Message = dict[str, Any]  # as chat completions have them
Split = Literal["train", "test"]

HELD_OUT = 12  # every so many-th function is for the test alone
SERVICES_SHARE = 0.1  # of the trees have functions of real services
DETAILED_SHARE = 0.2  # of the trees have functions whose requests tell much in passing
PLURAL_SHARE = 0.15  # of the trees have functions of which people ask several things at once
SIMILAR_SHARE = 0.65  # of the trees have functions of one subject
SEVERAL_SHARE = 0.25  # of the tools in a message are called more than once
WOVEN_SHARE = 0.5  # of such messages are about the same thing, where the tools share one
AGAIN_SHARE = 0.15  # of such messages come back to a tool
CALLS_MAX = 6  # in a message
DISTRACTED_SHARE = 0.3  # of the requests to the page come with passages that say nothing of them
BETWEEN_SHARE = 0.15  # of those that follow another one
RELATED = 8  # functions that stand together in the list are of one subject
EARLIER_SHARE, DIALOGUE_SHARE, TASK_SHARE = 0.12, 0.2, 0.4  # of the questions, and of the talk
NEAR_SHARE = 0.5  # of the requests without a fitting tool, where near_misses.txt has some
ALIKE_SHARE = 0.3  # of the words of a description
VERBS = frozenset(POOLS["verb"])  # in the names of functions: those that say not what it is about
TOOLS = (1, 1, 1, 2, 2, 2, 3, 3, 4)
# kinds of branches, with one tool and with several
ALONE = {"one": 8, "several": 6, "declined": 4, "unspecified": 1, "talked": 2}
BESIDE = {"one": 8, "several": 5, "different": 10, "declined": 7, "unspecified": 1, "talked": 3}


@dataclass(frozen=True, slots=True)
class Tree:
    """Each branch follows `system` by itself. Everything that the assistant says in it is learnt."""

    system: Message
    tools: list[dict[str, Any]]
    branches: list[list[Message]]


def exchange(text: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


def called(text: str, calls: Sequence[Call]) -> list[Message]:
    user, assistant = exchange(text, "")
    return [user, {**assistant, "tool_calls": [{"type": "function", "function": call} for call in calls]}]


class Conversations:
    """Seeded: the same seed writes the same trees. `split` says which functions may be used."""

    def __init__(self, seed: str, split: Split = "train") -> None:
        self.choose = Chooser(Random(seed))
        everyday = list(functions.read())
        self.everyday = _kept(everyday, split)
        self.places = {function.name: at for at, function in enumerate(everyday)}
        self.detailed, self.plural = map(self._of, (functions.DETAILED, functions.PLURAL))
        self.services = _kept(functions.read(functions.SERVICES), split)
        self.near = {name: texts.split(";;") for name, texts in (line.split("|") for line in lines("near_misses.txt"))}
        self.talk = Talk()

    def _of(self, file: str) -> list[Function]:
        names = {function.name for function in functions.read(file)}
        return [function for function in self.everyday if function.name in names]

    def trees(self) -> Iterator[Tree]:
        while True:
            share = self.choose.random.random()
            yield self.functions() if share < 0.6 else self.page() if share < 0.92 else self.plain()

    def functions(self) -> Tree:
        """Tools of a client: the calls end a branch."""
        choose = self.choose
        tools = self._tools()
        shares = ALONE if len(tools) == 1 else BESIDE
        kinds = choose.random.choices([*shares], [*shares.values()], k=choose.between(7, 10))
        branches = [made for kind in kinds if (made := getattr(self, kind)(tools))]
        return self._tree([tool.schema for tool in tools], branches or [self.talked(tools)])

    def page(self) -> Tree:
        """The tools of the server, passages, and both: as the chat page asks."""
        choose = self.choose
        schemas = choose.some(builtin.SCHEMAS, choose.pick((2, 2, 3, 3, 3))) if choose.chance(0.6) else builtin.SCHEMAS
        names = {schema["function"]["name"] for schema in schemas}
        kinds = [*[self._server] * 7, *[self._documents] * 8, *[self._talk_beside] * 9]
        return self._tree(schemas, [choose.pick(kinds)(names) for _ in range(choose.between(6, 11))])

    def plain(self) -> Tree:
        """No tools at all."""
        kinds = (self._documents, self._documents, self._talk_beside)
        return self._tree([], [self.choose.pick(kinds)(set()) for _ in range(self.choose.between(3, 5))])

    def _tree(self, tools: list[dict[str, Any]], branches: list[list[Message]]) -> Tree:
        usual, *_ = systems = POOLS["system text"]
        text = usual if self.choose.chance(0.75) else self.choose.pick(systems)
        return Tree({"role": "system", "content": text}, tools, branches)

    def _tools(self) -> list[Tool]:
        choose = self.choose
        share = choose.random.random()
        pool = self.services if share < SERVICES_SHARE else self.everyday
        if share > 1 - DETAILED_SHARE:
            pool = self.detailed
        elif share > 1 - DETAILED_SHARE - PLURAL_SHARE:
            pool = self.plural
        if choose.chance(SIMILAR_SHARE):
            start = choose.between(0, max(0, len(pool) - RELATED))
            pool = pool[start : start + RELATED]
        return [function.tool(choose) for function in choose.some(pool, choose.pick(TOOLS))]

    def one(self, tools: list[Tool]) -> list[Message] | None:
        return self._request(self.choose.pick(tools).ask(self.choose))

    def several(self, tools: list[Tool]) -> list[Message] | None:
        return self._request(plural.several(self.choose, self.choose.pick(tools)))

    def different(self, tools: list[Tool]) -> list[Message] | None:
        """Several tools in one message, now and then one of them more than once, or two about the same thing."""
        choose = self.choose
        if len(tools) < 2:
            return self.several(tools)
        chosen = choose.some(tools, choose.pick((2, 2, 3)))
        made = woven(choose, *chosen[:2]) if choose.chance(WOVEN_SHARE) else []
        for tool in chosen[len(made) :] + choose.some(chosen, choose.chance(AGAIN_SHARE)):
            asked = plural.several(choose, tool) if choose.chance(SEVERAL_SHARE) else tool.ask(choose)
            made += [asked] if asked else []
        return self._request(joined(choose, made)) if made else None

    def _request(self, request: Request | None) -> list[Message] | None:
        """None where a call would be repeated, or there are too many."""
        if request is None or len(request.calls) > CALLS_MAX:
            return None
        if len(set(map(json.dumps, request.calls))) < len(request.calls):
            return None
        return called(typed(self.choose, request.text), request.calls)

    def declined(self, tools: list[Tool]) -> list[Message] | None:
        """A request for a function that is not there: of another subject, of the same, or about the same things."""
        choose = self.choose
        decline = choose.pick(POOLS["decline"])
        alone = [tool for tool in tools if not self._beside_another(tool, tools)]
        near = [(tool, text) for tool in alone for text in self.near.get(tool.function.name, ())]
        if near and choose.chance(NEAR_SHARE):
            tool, text = choose.pick(near)
            asked = tool.filled(choose, text)
            return exchange(typed(choose, asked), decline) if asked else None
        pool = self.everyday if choose.chance(0.85) else self.services
        offered = {tool.function.name for tool in tools}
        if choose.chance(0.5) and (at := next((i for i, f in enumerate(pool) if f.name in offered), None)) is not None:
            pool = pool[max(0, at - RELATED) : at + RELATED]
        other = choose.pick(pool)
        request = None if any(alike(other, tool.function) for tool in tools) else other.tool(choose).ask(choose)
        if choose.chance(0.2) and not other.exact:
            decline = f"I have no tool for this: {lowered(other.description.rstrip('.'))}."
        return exchange(typed(choose, request.text), decline) if request else None

    def _beside_another(self, tool: Tool, tools: Sequence[Tool]) -> bool:
        """Whether another of them stands near it in the list, so that it may do what this one cannot."""
        places = [self.places.get(each.function.name, -RELATED) for each in (tool, *tools)]
        return any(0 < abs(places[0] - place) < RELATED for place in places[1:])

    def unspecified(self, tools: list[Tool]) -> list[Message] | None:
        made = self.choose.pick(tools).unspecified(self.choose)
        return exchange(*made) if made else None

    def talked(self, tools: list[Tool]) -> list[Message]:
        return exchange(*self.talk.exchange(self.choose, page=False))

    def _talk_beside(self, names: set[str]) -> list[Message]:
        choose = self.choose
        if (share := choose.random.random()) < DIALOGUE_SHARE + TASK_SHARE:
            said = self.talk.dialogue(choose) if share < DIALOGUE_SHARE else choose.pick(tasks.KINDS)(choose)
            if names and choose.chance(DISTRACTED_SHARE):  # the passages of earlier questions are gone on the platform
                said[-1] = (passages.distracting(choose, said[-1][0]), said[-1][1])
            return [message for each in said for message in exchange(*each)]
        branch = self._earlier()
        for at in range(choose.pick((1, 1, 1, 1, 2))):
            text, answer = self.talk.exchange(choose, page=True)
            found = passages.retrieved(text)
            if names and not at and choose.chance(2 * DISTRACTED_SHARE if found else DISTRACTED_SHARE):
                text = passages.distracting(choose, text)
            branch += exchange(text, answer)
        return branch

    def _earlier(self) -> list[Message]:
        """Now and then a question before, whose passages are gone as on the platform."""
        if not self.choose.chance(EARLIER_SHARE):
            return []
        before = passages.ask(self.choose)
        user, assistant = exchange(before.question, before.answer)
        return [user, assistant | {"learnt": False}]

    def _documents(self, names: set[str]) -> list[Message]:
        branch, asked = self._earlier(), passages.ask(self.choose)
        return branch + exchange(asked.text, asked.answer)

    def _server(self, names: set[str]) -> list[Message]:
        """Requests for the built-in tools: one, several in a message, or one after the other. What the tree has no tool
        for is declined."""
        choose = self.choose
        asked = choose.pick(builtin.KINDS)(choose)
        if asked.call["name"] not in names:
            return exchange(asked.text, choose.pick(POOLS["decline"]))
        if choose.chance(0.28):
            if choose.chance(0.35) and asked.call["name"] == "current_time":
                return self._clocks()
            more = [choose.pick(builtin.KINDS)(choose) for _ in range(choose.pick((1, 1, 1, 2)))]
            several = [asked, *(each for each in more if each.call["name"] in names)]
            text = joined(choose, [Request(each.text, [each.call]) for each in several]).text
            return _done(text, several)
        text = passages.distracting(choose, asked.text) if choose.chance(DISTRACTED_SHARE) else asked.text
        branch = _done(text, [asked])
        for _ in range(choose.pick((0, 0, 0, 1, 1, 2))):
            asked = asked.again(choose) if choose.chance(0.6) else choose.pick(builtin.KINDS)(choose)
            if asked.call["name"] not in names:
                break
            text = passages.distracting(choose, asked.text) if choose.chance(BETWEEN_SHARE) else asked.text
            branch += _done(text, [asked])
        return branch + self._talk_beside(names) if choose.chance(0.1) else branch

    def _clocks(self) -> list[Message]:
        """The time in several places, asked in one question."""
        choose = self.choose
        clocks = [builtin.time(choose, "time", "time") for _ in range(choose.pick((2, 2, 3)))]
        text = choose.pick(builtin.ASKED["time"]).format(choose.listed([clock.thing for clock in clocks]))
        return _done(text, clocks)


def _done(text: str, asked: Sequence[builtin.Asked]) -> list[Message]:
    """With the results of the calls, and what the assistant makes of them."""
    results = [{"role": "tool", "content": each.result} for each in asked]
    told = {"role": "assistant", "content": " ".join(each.answer for each in asked)}
    return [*called(text, [each.call for each in asked]), *results, told]


def alike(one: Function, other: Function) -> bool:
    """Whether the tool of one may do for the other: their names share what they are about, or much of their
    descriptions. What is done with it (get, find ...) is in the names of most."""
    modules = {each.name.rpartition(".")[0] for each in (one, other)}
    shared = f"{modules.pop()}." if len(modules) == 1 else ""  # the module says what both are about, not what they do
    words = [spaced(each.name.removeprefix(shared)).split() for each in (one, other)]
    names = [{word.rstrip("s") for word in set(each) - VERBS} for each in words]
    told = [{word.rstrip("s") for word in re.findall(r"[a-z]{4,}", each.description.lower())} for each in (one, other)]
    common = len(told[0] & told[1]) / max(1, min(map(len, told)))
    return bool(names[0] & names[1]) or common > ALIKE_SHARE


def accepted(path: Path) -> Iterator[Tree]:
    """The lines that `firsttoken eval export` prints, over and over: each is a tree of one branch."""
    for line in cycle([json.loads(line) for line in path.read_text().splitlines()]):
        first, *rest = messages = line["messages"]
        if first["role"] != "system":
            first, rest = {"role": "system", "content": POOLS["system text"][0]}, messages
        yield Tree(first, line.get("tools", []), [rest])


def _kept(found: Iterable[Function], split: Split) -> list[Function]:
    """Services have operations in common: what training knows under another name is not held out."""
    functions = list(found)
    train = [function for at, function in enumerate(functions) if at % HELD_OUT]
    if split == "train":
        return train
    known = {function.description for function in train}
    return [function for function in functions[::HELD_OUT] if function.description not in known]
