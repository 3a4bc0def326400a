"""What is asked of both sides, one function per row of the table. Each returns the numbers of one round.

`seed` names the round: what it says was never said before, so nothing is cached that the workload does not cache.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchmarks.engine import prompts
from benchmarks.engine.measures import GAP_P95, TTFT, TTFT_P95, Reply, measure, percentile
from benchmarks.engine.prompts import Message
from benchmarks.engine.target import Listener, Target

ANSWER_TOKENS = 64
LONG_TOKENS = 4000
CHATS = 8  # that run when the long prompt comes
CHATS_LEAD_TOKENS = 8  # each has said that much by then
CHATS_TOKENS_MAX = 3000  # more than they can say before it is through; then they are hung up on
LONG_TTFT = "TTFT of the long one"
GAP_MAX = "longest gap"

Round = Callable[[Target, str], Awaitable[dict[str, float]]]


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    run: Round


def named(prefix: str, workload: Workload) -> Workload:
    """The same for another comparison, which has other goals."""
    return Workload(f"{prefix}: {workload.name}", workload.run)


def cold(clients: int) -> Workload:
    async def run(target: Target, seed: str) -> dict[str, float]:
        return measure(await _at_once(target, prompts.shared(seed, clients)))

    return Workload(f"cold, {clients} clients at once", run)


def warm(clients: int, turns: int, tokens: int = ANSWER_TOKENS) -> Workload:
    """Every client has asked once, which is not measured, and then asks `turns` more questions one after another."""

    async def run(target: Target, seed: str) -> dict[str, float]:
        asked = prompts.shared(seed, clients * (turns + 1))
        await _at_once(target, asked[:clients], max_tokens=2)
        waiting = iter(asked[clients:])
        replies: list[Reply] = []

        async def client() -> None:
            for messages in waiting:
                replies.append(await Listener().listen(target, messages, tokens))

        await asyncio.gather(*(client() for _ in range(clients)))
        return measure(replies)

    return Workload(f"warm, {clients} client{'s' * (clients > 1)}", run)


def interrupted() -> Workload:
    """A long prompt arrives while chats run: the gaps in their answers until its first token."""

    async def run(target: Target, seed: str) -> dict[str, float]:
        chats = [Listener() for _ in range(CHATS)]
        async with asyncio.TaskGroup() as group:
            asked = zip(chats, prompts.shared(seed, CHATS), strict=True)
            running = [group.create_task(chat.listen(target, said, CHATS_TOKENS_MAX)) for chat, said in asked]
            for chat in chats:
                await chat.heard(CHATS_LEAD_TOKENS)
            long = await Listener().listen(target, prompts.alone(f"{seed}/long", LONG_TOKENS), 1)
            for chat in chats:
                await chat.heard(len(chat.said) + 1)  # the end of the gap that it caused
            for task in running:
                task.cancel()
        first_s = long.pieces_s[0]
        gaps = [gap * 1e3 for chat in chats for gap in chat.reply.gaps_within(long.asked_s, first_s)]
        return {GAP_P95: percentile(gaps, 95), GAP_MAX: max(gaps), LONG_TTFT: long.ttft_s * 1e3}

    return Workload(f"a {LONG_TOKENS}-token prompt among {CHATS} chats", run)


def returning(conversations: int, history_tokens: int, later_tokens: int) -> Workload:
    """Many conversations, one turn at a time: each comes back after all others have had theirs."""

    async def run(target: Target, seed: str) -> dict[str, float]:
        talks = [prompts.alone(f"{seed}/{i}", history_tokens) for i in range(conversations)]
        for talk in talks:
            await _turn(target, talk)
        first = []
        for number, talk in enumerate(talks):
            talk += [Message("user", prompts.words(f"{seed}/{number}/more", later_tokens))]
            first.append(await _turn(target, talk))
        return {TTFT: statistics.median(first), TTFT_P95: percentile(first, 95)}

    return Workload(f"{conversations} conversations of {history_tokens} tokens in turn", run)


async def _turn(target: Target, talk: list[Message]) -> float:
    """One turn, whose answer becomes part of the talk; returns its time to first token in milliseconds."""
    listener = Listener()
    reply = await listener.listen(target, talk, CHATS_LEAD_TOKENS)
    talk.append(Message("assistant", listener.text))
    return reply.ttft_s * 1e3


async def _at_once(target: Target, asked: Sequence[list[Message]], max_tokens: int = ANSWER_TOKENS) -> list[Reply]:
    return await asyncio.gather(*(Listener().listen(target, messages, max_tokens) for messages in asked))
