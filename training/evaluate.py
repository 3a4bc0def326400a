"""How good the exported model is on words that training never saw: greedy, through the platform's engine and parser.

Each category is asked twice: free, and held to the grammar of the conversation's tools as strict functions are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from agents.message import FunctionCall
from agents.parser.deltas import CallFinished, Text
from agents.parser.hermes import HermesParser
from inference.config import EngineConfig
from inference.generation import Sampling
from inference.grammar.tools import CallableFunction, tool_grammar
from inference.model import ChatModel
from training.cases import CATEGORIES, Case, Category, Reply
from training.conversations.generator import Generator

TOKENS_MAX = 220  # of an answer; three calls take about 150
CALLS_MAX = 3
AT_ONCE = 8  # cases under way: the engine batches them
DRAFTED = 4  # tokens at a time, where acceptance is measured


@dataclass(frozen=True, slots=True)
class Share:
    right: int
    of: int

    def __str__(self) -> str:
        return f"{100 * self.right / self.of:.1f} %" if self.of else "-"


@dataclass(frozen=True, slots=True)
class Wrong:
    """A case that went wrong, to be looked at."""

    category: str
    expected: str
    text: str
    calls: tuple[FunctionCall, ...]

    def __str__(self) -> str:
        calls = " ".join(f"{call.name}{call.arguments}" for call in self.calls)
        return f"{self.category}: {self.expected}\n  => {self.text.strip() or calls}"


@dataclass(slots=True)
class Scores:
    """`shares` by category and what was judged."""

    shares: dict[tuple[str, str], Share] = field(default_factory=dict)
    wrong: list[Wrong] = field(default_factory=list)


@asynccontextmanager
async def loaded(model: Path, draft: Path | None = None, **settings: Any) -> AsyncIterator[ChatModel]:
    """With a draft model exactly DRAFTED tokens are drafted at a time, whether that pays or not."""
    least = DRAFTED if draft else 0
    config = EngineConfig(
        model_path=model, draft_path=draft, draft_max=DRAFTED, draft_min=least, parallel=AT_ONCE, **settings
    )
    chat = await asyncio.to_thread(ChatModel.load, config)
    await chat.start()
    try:
        yield chat
    finally:
        await chat.close()


async def evaluate(
    model: Path,
    generator: Generator,
    count: int,
    *,
    held: bool = False,
    categories: Sequence[Category] = CATEGORIES,
    **settings: Any,
) -> Scores:
    """`count` cases of each category; with `held`, under the grammar of the tools, where a case has tools. `settings`
    are fields of EngineConfig."""
    scores = Scores()
    async with loaded(model, **settings) as chat:
        for category in categories:
            cases = list(islice(category.cases(generator), 20 if category.name == "small talk" else count))
            cases = [case for case in cases if case.schemas or not held]
            await _category(chat, category, cases, held, scores)
    return scores


async def _category(chat: ChatModel, category: Category, cases: list[Case], held: bool, scores: Scores) -> None:
    right: Counter[str] = Counter()
    places = asyncio.Semaphore(AT_ONCE)
    with tqdm(total=len(cases), desc=category.name, unit=" cases", disable=None) as bar:

        async def judge(case: Case) -> None:
            async with places:
                verdict: dict[str, bool] = {}
                for at in case.at:
                    reply = await _reply(chat, case, at, held)
                    for name, fine in category.judged(case, at, reply).items():
                        verdict[name] = verdict.get(name, True) and fine
                    if not all(verdict.values()):
                        scores.wrong.append(Wrong(category.name, _shown(case, at), reply.text, reply.calls))
                right.update({name: int(fine) for name, fine in verdict.items()})
            bar.update()

        await asyncio.gather(*(judge(case) for case in cases))
    for name, count in right.items():
        scores.shares[category.name, name] = Share(count, len(cases))


async def _reply(chat: ChatModel, case: Case, at: int, held: bool) -> Reply:
    text = _grammar(case) if held else None
    grammar = await asyncio.to_thread(chat.prepare, text) if text else None
    prompt = chat.encode(chat.render(case.prompt(at), case.schemas))
    generation = chat.generate(prompt, Sampling(temperature=0, max_tokens=TOKENS_MAX, grammar=grammar))
    parser = HermesParser()
    events = [event async for delta in generation for event in parser.feed(delta.text)]
    said = "".join(event.text for event in events if isinstance(event, Text))
    calls = (event for event in events if isinstance(event, CallFinished))
    return Reply(said, tuple(FunctionCall(str(c.index), c.name, c.arguments) for c in calls))


def _grammar(case: Case) -> str | None:
    functions = [schema["function"] for schema in case.schemas]
    if not functions:
        return None
    return tool_grammar(
        [CallableFunction(f["name"], f["parameters"], strict=True) for f in functions], calls_max=CALLS_MAX
    )


def _shown(case: Case, at: int) -> str:
    message = case.expected(at)
    asked = next(m.content for m in reversed(case.prompt(at)) if m.role == "user")
    calls = " ".join(f"{call.name}{call.arguments}" for call in message.tool_calls)
    return f"{asked}\n  -> {message.content or calls}"


async def acceptance(model: Path, draft: Path, generator: Generator, count: int) -> float:
    """The share of drafted tokens that the model itself would have written, over all categories but small talk."""
    async with loaded(model, draft) as chat:
        for category in CATEGORIES[:-1]:
            for case in islice(category.cases(generator), count):
                await _reply(chat, case, case.at[-1], held=False)
        stats = chat.stats()
    return float(stats["accepted_total"]) / max(1.0, float(stats["drafted_total"]))


def examples(scores: Scores, each: int) -> Iterable[Wrong]:
    """The first that went wrong, so many of each category."""
    for category in dict.fromkeys(wrong.category for wrong in scores.wrong):
        yield from islice((wrong for wrong in scores.wrong if wrong.category == category), each)


def table(free: Scores, held: Scores | None) -> Iterable[str]:
    """Markdown, a row for everything that was judged."""
    yield "| | | free | with grammar |"
    yield "|---|---|---|---|"
    for (category, judged), share in free.shares.items():
        other = held.shares.get((category, judged)) if held else None
        yield f"| {category} | {judged} | {share} (n={share.of}) | {other or '-'} |"
