"""Drafts: the same greedy answers with and without them, and their speed. Some answers quote their prompt, which is
what prompt lookup is for, and some do not: those it must not slow down.

Speed is told in characters: the tokens of a step with a draft arrive in one piece.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from statistics import median

from benchmarks.engine.measures import CHARACTER_MS, CHARACTERS, TTFT
from benchmarks.engine.prompts import Message
from benchmarks.engine.servers import Setup, bare
from benchmarks.engine.target import Bare, Listener, Target
from benchmarks.engine.workloads import Workload
from inference.bundled import CHAT_MODEL, DRAFT_MODEL

ANSWER_TOKENS = 160
BUNDLED = Setup(CHAT_MODEL, streams=16, context=2048, draft=DRAFT_MODEL)
SMALL_TALK = (  # what the bundled model can answer or decline at some length
    "Tell me story number {n}.",
    "My name is Anna and I am {n}. What can you do for me?",
    "What is {n} times 7?",
    "Write a list of {n} fruits.",
)
OPEN = (
    "Explain why the sky is blue, for child number {n}.",
    "Give me {n} tips for learning a language.",
    "What is the difference between a virus and a bacterium, in {n} lines?",
)
PASSAGE = (
    "The lighthouse of Grey Point was built in {year} by {first}, an engineer from {town}. Its lamp burned rapeseed "
    "oil until 1911, when the keeper, {second}, replaced it by an electric one that a windmill fed. In the storm of "
    "January 1953 the windmill was lost, and for {n} nights the keeper's daughter, Agnes, turned the lens by hand. "
    "Since 1988 nobody has lived there; the light is switched on and off from the harbour office in Penrose."
)
CODE = """class {kind}:
    def __init__(self):
        self.{many} = []

    def push(self, {one}):
        self.{many}.append({one})

    def pop(self):
        if not self.{many}:
            raise IndexError("pop from an empty {kind}")
        return self.{many}.pop()

    def size(self):
        return len(self.{many})
"""
PEOPLE = ("Marta Olsen", "Ben Okafor", "Li Wei", "Ana Souza", "Eliza Marlow", "Thomas Reed")
TOWNS = ("Bristol", "Leeds", "Cardiff", "Dundee")
GOODS = ("garden hose", "blue kettle", "steel ladder", "box of tomato seeds", "hammer", "pair of gloves")
STATES = ("shipped", "waiting for payment", "returned")
THINGS = (
    ("Stack", "items", "item"),
    ("Shelf", "books", "book"),
    ("Basket", "fruits", "fruit"),
    ("Deck", "cards", "card"),
)


ASKED = (
    "Who built the lighthouse, and in which year?",
    "What did the lamp burn, and until when?",
    "What happened in the storm of January 1953?",
    "From where is the light switched on and off?",
)
REPEAT = "Repeat this text word for word."


def _about_passage(draw: random.Random, question: str) -> str:
    first, second = draw.sample(PEOPLE, 2)
    told = PASSAGE.format(
        year=draw.randint(1840, 1890), first=first, second=second, town=draw.choice(TOWNS), n=draw.randint(5, 30)
    )
    return f"Passages:\n[1] Grey Point: {told}\n\nQuestion: {question}"


def _code(draw: random.Random) -> str:
    kind, many, one = draw.choice(THINGS)
    code = CODE.format(kind=kind, many=many, one=one)
    return f"Add a method `peek` to this class and write the whole class:\n\n```python\n{code}```"


def _result(draw: random.Random) -> str:
    orders = "\n".join(
        f"- A-{draw.randint(1000, 9999)}: {draw.randint(1, 12)} x {goods} for {who}, {draw.choice(STATES)}"
        for who, goods in zip(draw.sample(PEOPLE, 4), draw.sample(GOODS, 4), strict=True)
    )
    return f"The tool `orders` returned:\n\n{orders}\n\nRepeat all orders."


TASKS: dict[str, Callable[[random.Random], str]] = {
    "a passage": lambda draw: _about_passage(draw, REPEAT),
    "an answer from a passage": lambda draw: _about_passage(draw, draw.choice(ASKED)),
    "an edit of code": _code,
    "a tool result": _result,
    "nothing to quote": lambda draw: draw.choice(OPEN).format(n=draw.randint(3, 9)),
}


@asynccontextmanager
async def pair(setup: Setup) -> AsyncIterator[tuple[Bare, Bare]]:
    """Our engine with drafts, and without."""
    async with bare(setup) as with_drafts, bare(replace(setup, draft=None, lookup=False)) as without:
        yield replace(with_drafts, name="with drafts"), replace(without, name="without drafts")


def drafted(clients: int, turns: int) -> Workload:
    """Small talk: nothing to quote."""

    def question(seed: str, number: int) -> str:
        return SMALL_TALK[number % len(SMALL_TALK)].format(n=number)

    return _workload("draft", question, clients, turns)


def quoting(task: str, clients: int, turns: int) -> Workload:
    def question(seed: str, number: int) -> str:
        return TASKS[task](random.Random(f"{seed}/{number}"))

    return _workload(f"lookup: {task}", question, clients, turns)


def _workload(name: str, question: Callable[[str, int], str], clients: int, turns: int) -> Workload:
    async def run(target: Target, seed: str) -> dict[str, float]:
        asked = iter([question(seed, number) for number in range(clients * turns)])
        listeners: list[Listener] = []

        async def client() -> None:
            for text in asked:
                listeners.append(Listener())
                await listeners[-1].listen(target, [Message("user", text)], ANSWER_TOKENS)

        await asyncio.gather(*(client() for _ in range(clients)))
        return measured(listeners)

    return Workload(f"{name}, {clients} client{'s' * (clients > 1)}", run)


def measured(listeners: list[Listener]) -> dict[str, float]:
    replies = [listener.reply for listener in listeners]
    wall_s = max(reply.pieces_s[-1] for reply in replies) - min(reply.asked_s for reply in replies)
    each_s = [
        (listener.pieces_s[-1] - listener.pieces_s[0]) / max(1, len(listener.text) - len(listener.said[0]))
        for listener in listeners
    ]
    return {
        CHARACTERS: sum(len(listener.text) for listener in listeners) / wall_s,
        CHARACTER_MS: median(each_s) * 1e3,
        TTFT: median(reply.ttft_s for reply in replies) * 1e3,
    }
