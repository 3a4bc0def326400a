"""A stage's time budget: what is late is skipped, and its span says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from inference.trace import Span

T = TypeVar("T")


async def within(budget_ms: float, work: Awaitable[T], span: Span) -> T | None:
    """The result of the work, or None when it was not there in time and has been cancelled."""
    span.attributes["budget_ms"] = budget_ms
    try:
        async with asyncio.timeout(budget_ms / 1000):
            return await work
    except TimeoutError:
        span.attributes["skipped"] = "over budget"
        return None
