"""Trying again, with longer and longer waits, what may be done twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agents.tool import ToolError, TryAgain

T = TypeVar("T")

# A hiccup of a network is over by then; somebody waits for the answer, so there are no more.
WAITS_S = (0.1, 0.4)
JITTER = 0.5  # of a wait, at random: calls that failed together do not come back together


async def retried(attempt: Callable[[], Awaitable[T]], *, again: bool, remaining_s: Callable[[], float]) -> T:
    """The result of the first attempt that succeeds. Only with `again` is there more than one, and only in time.

    Raises what the last attempt raised; a ToolError is the tool's answer and ends it at once, unless it is TryAgain.
    """
    for wait_s in WAITS_S if again else ():
        try:
            return await attempt()
        except Exception as error:  # the boundary: a tool is anybody's code
            spread_s = wait_s * (1 + JITTER * random.random())
            if (isinstance(error, ToolError) and not isinstance(error, TryAgain)) or remaining_s() <= spread_s:
                raise
            await asyncio.sleep(spread_s)
    return await attempt()
