"""The server-side tool calls of one step: each starts the moment its arguments close, all run beside each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TypeAlias

from agents.budget import Budget
from agents.message import FunctionCall
from agents.tool import ToolContext
from agents.toolbox import Toolbox, ToolResult
from inference.trace import now_ns

MOMENT_S = 0.005  # the shortest wait that it pays to read in: as long as it takes to make a prompt, and a small step

Pending: TypeAlias = asyncio.Task[ToolResult] | ToolResult


@dataclass(slots=True)
class RunningCalls:
    toolbox: Toolbox
    offered: frozenset[str]
    context: ToolContext
    budget: Budget
    pending: list[tuple[FunctionCall, Pending]] = field(default_factory=list)  # in the order of the calls

    def start(self, call: FunctionCall) -> None:
        """Start a complete call, unless it may not run: then its result says why."""
        limits, remaining_s = self.budget.limits, self.budget.remaining_s(now_ns())
        if call.name not in self.offered:
            self.refuse(call, f"there is no tool named '{call.name}'")
        elif not self.budget.admit(call.name, call.arguments) or remaining_s <= 0:
            self.refuse(call, "not run, the tool budget is exhausted")
        else:
            running = self.toolbox.run(
                call.name,
                call.arguments,
                self.context,
                timeout_s=min(limits.tool_timeout_s, remaining_s),
                result_chars=limits.tool_result_chars,
            )
            self.pending.append((call, asyncio.create_task(running, name=f"tool:{call.name}")))

    def refuse(self, call: FunctionCall, reason: str) -> None:
        self.pending.append((call, ToolResult.error(reason)))

    def cancel(self) -> None:
        """Stop what still runs; finished calls are not touched."""
        for _, result in self.pending:
            if isinstance(result, asyncio.Task):
                result.cancel()


async def takes_long(pending: Pending) -> bool:
    """Whether its result is not there in a moment."""
    if isinstance(pending, asyncio.Task):
        await asyncio.wait({pending}, timeout=MOMENT_S)
    return isinstance(pending, asyncio.Task) and not pending.done()


async def settled(pending: Pending) -> ToolResult:
    return await pending if isinstance(pending, asyncio.Task) else pending
