"""Trees of conversations: one system message with its tools, and several independent conversations after it.

A tree is read once for all its branches, which saves most of the tokens: the schemas of tools are long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from training import builtin, functions, plural, questions, tasks
from training.functions import Call, Function, Request, Tool, spaced, typed
from training.joined import joined, woven
from training.talk import Talk
from training.values import MIXTURE, POOLS, Chooser, Unfit, lines, lowered

Message = dict[str, Any]  # as chat completions have them
Split = Literal["train", "test"]

HELD_OUT = 12  # every so many-th function is for the test alone
CALLS_MAX = 6  # in a message
RELATED = 8  # functions that stand together in the list are of one subject
ALIKE_SHARE = 0.3  # of the words of a description
VERBS = frozenset(POOLS["verb"])  # in the names of functions: those that say not what it is about


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
        self.choose = Chooser(seed)
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
            share = self.choose.random()
            yield self.functions() if share < 0.6 else self.page() if share < 0.92 else self.plain()

    def functions(self) -> Tree:
        """Tools of a client: the calls end a branch."""
        tools = self._tools()
        shares = MIXTURE["alone" if len(tools) == 1 else "between_several"]
        branches = []
        for kind in self.choose.choices([*shares], [*shares.values()], k=self.choose.randint(7, 10)):
            with suppress(Unfit):
                branches.append(getattr(self, kind)(tools))
        return self._tree([tool.schema for tool in tools], branches or [self.talked(tools)])

    def page(self) -> Tree:
        """The tools of the server, passages, and both: as the chat page asks."""
        choose = self.choose
        schemas = choose.some(builtin.SCHEMAS, choose.pick((2, 2, 3, 3, 3))) if choose.chance(0.6) else builtin.SCHEMAS
        names = {schema["function"]["name"] for schema in schemas}
        kinds = [*[self._server] * 7, *[self._documents] * 8, *[self._talk_beside] * 9]
        return self._tree(schemas, [choose.pick(kinds)(names) for _ in range(choose.randint(6, 11))])

    def plain(self) -> Tree:
        """No tools at all."""
        kinds = (self._documents, self._documents, self._talk_beside)
        return self._tree([], [self.choose.pick(kinds)(set()) for _ in range(self.choose.randint(3, 5))])

    def _tree(self, tools: list[dict[str, Any]], branches: list[list[Message]]) -> Tree:
        text = POOLS["system text"][0] if self.choose.chance(0.75) else self.choose.way("system text")
        return Tree({"role": "system", "content": text}, tools, branches)

    def _tools(self) -> list[Tool]:
        choose = self.choose
        share = choose.random()
        pool = self.services if share < MIXTURE["services"] else self.everyday
        if share > 1 - MIXTURE["detailed"]:
            pool = self.detailed
        elif share > 1 - MIXTURE["detailed"] - MIXTURE["plural"]:
            pool = self.plural
        if choose.chance("similar"):
            start = choose.randint(0, max(0, len(pool) - RELATED))
            pool = pool[start : start + RELATED]
        return [function.tool(choose) for function in choose.some(pool, choose.count("tools"))]

    def one(self, tools: list[Tool]) -> list[Message]:
        return self._request(self.choose.pick(tools).ask(self.choose))

    def several(self, tools: list[Tool]) -> list[Message]:
        return self._request(plural.several(self.choose, self.choose.pick(tools)))

    def different(self, tools: list[Tool]) -> list[Message]:
        """Several tools in one message, now and then one of them more than once, or two about the same thing."""
        choose = self.choose
        if len(tools) < 2:
            return self.several(tools)
        chosen = choose.some(tools, choose.pick((2, 2, 3)))
        made = woven(choose, *chosen[:2]) if choose.chance("about_the_same") else []
        for tool in chosen[len(made) :] + choose.some(chosen, choose.chance("come_back")):
            with suppress(Unfit):
                made.append(plural.several(choose, tool) if choose.chance("several") else tool.ask(choose))
        return self._request(joined(choose, made))

    def _request(self, request: Request) -> list[Message]:
        """Raises Unfit where a call would be repeated, or there are too many."""
        if not len(set(map(json.dumps, request.calls))) == len(request.calls) <= CALLS_MAX:
            raise Unfit(request.text)
        return called(typed(self.choose, request.text), request.calls)

    def declined(self, tools: list[Tool]) -> list[Message]:
        """A request for a function that is not there: of another subject, of the same, or about the same things."""
        choose = self.choose
        decline = choose.way("decline")
        alone = [tool for tool in tools if not self._beside_another(tool, tools)]
        near = [(tool, text) for tool in alone for text in self.near.get(tool.function.name, ())]
        if near and choose.chance("near"):
            tool, text = choose.pick(near)
            return exchange(typed(choose, tool.filled(choose, text)), decline)
        pool = self.everyday if choose.chance(0.85) else self.services
        offered = {tool.function.name for tool in tools}
        if choose.chance(0.5) and (at := next((i for i, f in enumerate(pool) if f.name in offered), None)) is not None:
            pool = pool[max(0, at - RELATED) : at + RELATED]
        other = choose.pick(pool)
        request = None
        if not any(alike(other, tool.function) for tool in tools):
            with suppress(Unfit):
                request = other.tool(choose).ask(choose)
        if choose.chance(0.2) and not other.exact:
            decline = f"I have no tool for this: {lowered(other.description.rstrip('.'))}."
        if request is None:
            raise Unfit(other.name)
        return exchange(typed(choose, request.text), decline)

    def _beside_another(self, tool: Tool, tools: Sequence[Tool]) -> bool:
        """Whether another of them stands near it in the list, so that it may do what this one cannot."""
        place, *places = (self.places.get(each.function.name, -RELATED) for each in (tool, *tools))
        return any(0 < abs(place - other) < RELATED for other in places)

    def unspecified(self, tools: list[Tool]) -> list[Message]:
        return exchange(*self.choose.pick(tools).unspecified(self.choose))

    def talked(self, tools: list[Tool]) -> list[Message]:
        return exchange(*self.talk.exchange(self.choose, page=False))

    def _talk_beside(self, names: set[str]) -> list[Message]:
        choose = self.choose
        if (share := choose.random()) < MIXTURE["dialogue"] + MIXTURE["task"]:
            said = self.talk.dialogue(choose) if share < MIXTURE["dialogue"] else choose.pick(tasks.KINDS)(choose)
            if names and choose.chance("distracted"):  # the passages of earlier questions are gone on the platform
                said[-1] = (questions.distracting(choose, said[-1][0]), said[-1][1])
            return [message for each in said for message in exchange(*each)]
        branch = self._earlier()
        for at in range(choose.pick((1, 1, 1, 1, 2))):
            text, answer = self.talk.exchange(choose, page=True)
            share = MIXTURE["distracted"] * (2 if questions.retrieved(text) else 1)
            if names and not at and choose.chance(share):
                text = questions.distracting(choose, text)
            branch += exchange(text, answer)
        return branch

    def _earlier(self) -> list[Message]:
        """Now and then a question before, whose passages are gone as on the platform."""
        if not self.choose.chance("earlier"):
            return []
        before = questions.ask(self.choose)
        user, assistant = exchange(before.question, before.answer)
        return [user, assistant | {"learnt": False}]

    def _documents(self, names: set[str]) -> list[Message]:
        branch, asked = self._earlier(), questions.ask(self.choose)
        return branch + exchange(asked.text, asked.answer)

    def _server(self, names: set[str]) -> list[Message]:
        """Requests for the built-in tools: one, several in a message, or one after the other. What the tree has no tool
        for is declined."""
        choose = self.choose
        asked = choose.pick(builtin.KINDS)(choose)
        if asked.call["name"] not in names:
            return exchange(asked.text, choose.way("decline"))
        if choose.chance(0.28):
            if choose.chance(0.35) and asked.call["name"] == "current_time":
                return self._clocks()
            more = [choose.pick(builtin.KINDS)(choose) for _ in range(choose.pick((1, 1, 1, 2)))]
            several = [asked, *(each for each in more if each.call["name"] in names)]
            return _done(joined(choose, [Request(each.text, [each.call]) for each in several]).text, several)
        branch = self._distracted(asked, "distracted")
        for _ in range(choose.pick((0, 0, 0, 1, 1, 2))):
            asked = asked.again(choose) if choose.chance(0.6) else choose.pick(builtin.KINDS)(choose)
            if asked.call["name"] not in names:
                break
            branch += self._distracted(asked, "distracted_between")
        return branch + self._talk_beside(names) if choose.chance(0.1) else branch

    def _distracted(self, asked: builtin.Asked, share: str) -> list[Message]:
        choose = self.choose
        return _done(questions.distracting(choose, asked.text) if choose.chance(share) else asked.text, [asked])

    def _clocks(self) -> list[Message]:
        """The time in several places, asked in one question."""
        choose = self.choose
        clocks = [builtin.time(choose, "clock in", "clock") for _ in range(choose.pick((2, 2, 3)))]
        form = choose.pick(POOLS["clock in"])
        return _done(form.format(choose.listed([clock.thing for clock in clocks])), clocks)


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
