"""The server's tools by name. Every failure of a tool becomes a result here; idempotent tools are retried, and results
of pure tools are cached.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from agents.message import storable
from agents.tool import ServerTool, ToolContext, ToolError, TryAgain
from agents.turn import canonical
from inference.lru_cache import LruCache
from inference.trace import now_ns

log = logging.getLogger(__name__)

T = TypeVar("T")

CUT_NOTE = "\n[cut: the result was longer]"

CHARS_MAX = 4_000_000  # of cached results
ENTRY_CHARS_MIN = 1_000  # that one counts as, so that there are 4,000 at most

# A transient network failure is over by then; the client waits for the answer, so there are no more retries.
WAITS_S = (0.1, 0.4)
JITTER = 0.5  # of a wait, at random: calls that failed together do not retry together


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model sees. An error is a result too: it starts with "Error: "."""

    output: str
    failed: bool = False
    start_ns: int = 0
    end_ns: int = 0
    cached: bool = False  # from an earlier call

    @classmethod
    def error(cls, message: str, start_ns: int = 0) -> ToolResult:
        end_ns = now_ns()
        return cls(f"Error: {message}", True, start_ns or end_ns, end_ns)


class Key(NamedTuple):
    """`arguments` in canonical form: equal JSON is the same call."""

    tenant_id: UUID
    tool: str
    arguments: str


class CachedResult(NamedTuple):
    """Of a pure tool, until a time in monotonic nanoseconds."""

    output: str
    until_ns: int


def result_cache() -> LruCache[Key, CachedResult]:
    return LruCache(CHARS_MAX, lambda key, kept: max(len(key.arguments) + len(kept.output), ENTRY_CHARS_MIN))


class Toolbox:
    """Tools that run on the server. Raises ValueError when two have the same name."""

    def __init__(self, tools: Iterable[ServerTool] = ()) -> None:
        self._results = result_cache()
        self._tools: dict[str, ServerTool] = {}
        for each in tools:
            if each.name in self._tools:
                raise ValueError(f"two tools are named '{each.name}'")
            self._tools[each.name] = each

    def put(self, tool: ServerTool) -> None:
        """Add a tool, or replace the one of that name: tools of MCP servers change with every connection."""
        self._tools[tool.name] = tool

    def including(self, tools: Sequence[ServerTool]) -> Toolbox:
        """These tools and those of one turn, which come first."""
        if not tools:
            return self
        both = Toolbox()
        both._results, both._tools = self._results, {**self._tools, **{tool.name: tool for tool in tools}}
        return both

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def repeats(self, name: str) -> bool:
        """Whether running it twice has the same effect as running it once. A tool that does not exist has none."""
        return name not in self._tools or self._tools[name].idempotent

    def schemas(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return [self._tools[name].schema for name in names]

    async def run(
        self, name: str, arguments: str, context: ToolContext, *, timeout_s: float, result_chars: int
    ) -> ToolResult:
        """Run one call. Raises nothing but cancellation; `arguments` is JSON text as the model wrote it."""
        start_ns = now_ns()
        if name not in self._tools:
            return ToolResult.error(f"there is no tool named '{name}'", start_ns)
        called, key = self._tools[name], Key(context.tenant_id, name, canonical(arguments))
        if (known := self._results.get(key)) is not None and start_ns < known.until_ns:
            return ToolResult(shorten(known.output, result_chars), False, start_ns, now_ns(), cached=True)
        context = replace(context, deadline_ns=start_ns + int(timeout_s * 1e9))
        try:
            async with asyncio.timeout(timeout_s):
                output = await retried(
                    lambda: called.run(arguments, context),
                    again=called.idempotent,
                    remaining_s=lambda: context.remaining_s,
                )
        except TimeoutError:
            return ToolResult.error(f"{name} took longer than {timeout_s:g} seconds and was stopped", start_ns)
        except ToolError as error:
            return ToolResult.error(shorten(storable(str(error)), result_chars), start_ns)
        except Exception as error:  # top-level boundary: a tool is third-party code, and the turn continues without it
            log.exception("tool %s failed", name)
            return ToolResult.error(f"{name} failed ({type(error).__name__})", start_ns)
        output, end_ns = storable(output), now_ns()
        if called.cache_s:
            self._results.put(key, CachedResult(output, end_ns + int(called.cache_s * 1e9)))
        return ToolResult(shorten(output, result_chars), False, start_ns, end_ns)


async def retried(attempt: Callable[[], Awaitable[T]], *, again: bool, remaining_s: Callable[[], float]) -> T:
    """The result of the first attempt that succeeds. Retries only with `again`, and only while the next wait is shorter
    than the remaining time.

    Raises what the last attempt raised; a ToolError is the tool's answer and is not retried, unless it is TryAgain.
    """
    for wait_s in WAITS_S if again else ():
        try:
            return await attempt()
        except Exception as error:  # top-level boundary: a tool is third-party code
            spread_s = wait_s * (1 + JITTER * random.random())
            if (isinstance(error, ToolError) and not isinstance(error, TryAgain)) or remaining_s() <= spread_s:
                raise
            await asyncio.sleep(spread_s)
    return await attempt()


def shorten(text: str, chars_max: int) -> str:
    """The text, or the longest prefix that fits together with a note that it was cut."""
    if len(text) <= chars_max:
        return text
    return text[: max(0, chars_max - len(CUT_NOTE))] + CUT_NOTE


def fit(text: str, tokens_max: int, count: Callable[[str], int]) -> str:
    """Shorten a text until it has at most `tokens_max` tokens by `count`."""
    shown, chars = text, len(text)
    while chars > 0 and len(shown.encode()) > tokens_max and (tokens := count(shown)) > tokens_max:
        chars = chars * max(0, tokens_max) * 9 // (tokens * 10)  # token lengths vary: aim a little lower
        shown = shorten(text, chars)
    return shown
