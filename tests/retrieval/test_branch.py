from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from inference.trace import Span, Trace
from retrieval.retriever import Question

QUESTION = Question(UUID(int=0), "any", None, Trace(), None)


async def test_what_is_in_time_is_given_back() -> None:
    span = Span("search", 0)
    assert await QUESTION.within(1000, asyncio.sleep(0, "found"), span) == "found"
    assert span.attributes == {"budget_ms": 1000}


async def test_what_is_late_is_cancelled_and_the_span_says_so() -> None:
    cancelled = asyncio.Event()

    async def endless() -> str:
        try:
            await asyncio.Event().wait()
            return "never"
        finally:
            cancelled.set()

    span = Span("search", 0)
    assert await QUESTION.within(1, endless(), span) is None
    assert cancelled.is_set()
    assert span.attributes["skipped"] == "over budget"


async def test_an_error_of_the_work_passes_through() -> None:
    async def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await QUESTION.within(1000, broken(), Span("search", 0))


async def test_cancelling_the_turn_cancels_the_work() -> None:
    started = asyncio.Event()

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    turn = asyncio.ensure_future(QUESTION.within(60_000, endless(), Span("search", 0)))
    await started.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
