"""A model with and without drafts: the same greedy answers, and their speed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from benchmarks.engine.measures import Reply, measure
from benchmarks.engine.prompts import Message
from benchmarks.engine.servers import Setup, bare
from benchmarks.engine.target import Bare, Listener, Target
from benchmarks.engine.workloads import Workload
from inference.bundled import CHAT_MODEL, DRAFT_MODEL

QUESTIONS = (  # among those that the bundled model can answer or decline at some length
    "Tell me story number {n}.",
    "My name is Anna and I am {n}. What can you do for me?",
    "What is {n} times 7?",
    "Write a list of {n} fruits.",
)
ANSWER_TOKENS = 64
BUNDLED = Setup(CHAT_MODEL, streams=16, context=2048, draft=DRAFT_MODEL)


@asynccontextmanager
async def pair(setup: Setup) -> AsyncIterator[tuple[Bare, Bare]]:
    """Our engine with drafts, and without."""
    async with bare(setup) as with_drafts, bare(replace(setup, draft=None, lookup=False)) as without:
        yield replace(with_drafts, name="with drafts"), replace(without, name="without drafts")


def drafted(clients: int, turns: int) -> Workload:
    async def run(target: Target, seed: str) -> dict[str, float]:
        asked = iter([QUESTIONS[n % len(QUESTIONS)].format(n=n) for n in range(clients * turns)])
        replies: list[Reply] = []

        async def client() -> None:
            for question in asked:
                replies.append(await Listener().listen(target, [Message("user", question)], ANSWER_TOKENS))

        await asyncio.gather(*(client() for _ in range(clients)))
        return measure(replies)

    return Workload(f"draft, {clients} client{'s' * (clients > 1)}", run)
