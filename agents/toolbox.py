"""The server's tools by name, and the boundary at which everything that goes wrong in them becomes a result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.budget import canonical
from agents.message import storable
from agents.results import Key, ResultCache
from agents.retry import retried
from agents.tool import ServerTool, Tool, ToolContext, ToolError, TryAgain, tool
from inference.trace import now_ns

__all__ = [
    "ServerTool",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolResult",
    "Toolbox",
    "TryAgain",
    "fit",
    "shorten",
    "tool",
]

log = logging.getLogger(__name__)

CUT_NOTE = "\n[cut: the result was longer]"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model is told. An error is a result too: it begins with "Error: "."""

    output: str
    failed: bool = False
    start_ns: int = 0
    end_ns: int = 0
    cached: bool = False  # known from an earlier call

    @classmethod
    def error(cls, message: str, start_ns: int = 0) -> ToolResult:
        end_ns = now_ns()
        return cls(f"Error: {message}", True, start_ns or end_ns, end_ns)


class Toolbox:
    """Tools that run on the server. Raises ValueError when two have the same name."""

    def __init__(self, tools: Iterable[ServerTool] = ()) -> None:
        self._results = ResultCache()
        self._tools: dict[str, ServerTool] = {}
        for each in tools:
            if each.name in self._tools:
                raise ValueError(f"two tools are named '{each.name}'")
            self._tools[each.name] = each

    def put(self, tool: ServerTool) -> None:
        """Add a tool, or replace the one of that name: those of other servers come and go."""
        self._tools[tool.name] = tool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def schemas(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return [self._tools[name].schema for name in names]

    async def run(
        self, name: str, arguments: str, context: ToolContext, *, timeout_s: float, result_chars: int
    ) -> ToolResult:
        """Run one call. Never raises but for cancellation; `arguments` is JSON text as the model wrote it."""
        start_ns = now_ns()
        if name not in self._tools:
            return ToolResult.error(f"there is no tool named '{name}'", start_ns)
        called, key = self._tools[name], Key(context.tenant_id, name, canonical(arguments))
        if (known := self._results.get(key, start_ns)) is not None:
            return ToolResult(shorten(known, result_chars), False, start_ns, now_ns(), cached=True)
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
        except Exception as error:  # the boundary: a tool is anybody's code, and the turn goes on without it
            log.exception("tool %s failed", name)
            return ToolResult.error(f"{name} failed ({type(error).__name__})", start_ns)
        output, end_ns = storable(output), now_ns()
        if called.cache_s:
            self._results.put(key, output, until_ns=end_ns + int(called.cache_s * 1e9))
        return ToolResult(shorten(output, result_chars), False, start_ns, end_ns)


def shorten(text: str, chars_max: int) -> str:
    """The text, or as much of its beginning as fits with a note that it was cut."""
    if len(text) <= chars_max:
        return text
    return text[: max(0, chars_max - len(CUT_NOTE))] + CUT_NOTE


def fit(text: str, tokens_max: int, count: Callable[[str], int]) -> str:
    """Shorten a text until `count` says that it has at most `tokens_max` tokens."""
    shown, chars = text, len(text)
    while chars > 0 and len(shown.encode()) > tokens_max and (tokens := count(shown)) > tokens_max:
        chars = chars * max(0, tokens_max) * 9 // (tokens * 10)  # tokens are not evenly long: aim a little lower
        shown = shorten(text, chars)
    return shown
