"""Makes spans of what the engine stamped. The engine has no spans of its own: a batch has no single owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agents.message import FunctionCall
from agents.toolbox import ToolResult
from inference.core import Generation
from inference.kvcache.miss_report import Verdict
from inference.trace import Span, Trace, now_ns


@dataclass(slots=True)
class StepSpans:
    """queue and prefill once the first token is there, decode at the end of the step; each call does it once.

    Why the prompt was new is told at the end: working it out must not hold up the first token.
    """

    trace: Trace
    generation: Generation
    verdict: Callable[[], Verdict | None]
    told_prefill: bool = False
    _prefill: Span | None = None
    _decoded: bool = False

    def prefilled(self) -> None:
        if self.told_prefill:
            return
        self.told_prefill = True
        stamps = self.generation.stamps
        self.trace.add("queue", stamps.submitted_ns, stamps.admitted_ns or now_ns())
        if stamps.admitted_ns:
            cached = self.generation.cached_tokens
            self._prefill = self.trace.add(
                "prefill",
                stamps.admitted_ns,
                stamps.prefilled_ns or now_ns(),
                new_tokens=self.generation.prompt_tokens - cached,
                cached_tokens=cached,
            )

    def decoded(self) -> None:
        """Also right for a step that was abandoned: what never happened gets no span."""
        if self._decoded:
            return
        self._decoded = True
        self.prefilled()
        self._judge()
        stamps = self.generation.stamps
        if stamps.first_token_ns:
            end_ns = stamps.last_token_ns or stamps.first_token_ns
            generation = self.generation
            self.trace.add(
                "decode",
                stamps.first_token_ns,
                end_ns,
                tokens=len(generation.ids),
                drafted=generation.drafted,
                accepted=generation.accepted,
            )

    def _judge(self) -> None:
        verdict = self.verdict() if self._prefill else None
        if self._prefill and verdict and verdict.cause:
            self._prefill.attributes |= {"cache.segment": str(verdict.segment), "cache.cause": str(verdict.cause)}


def add_tool(trace: Trace, parent: Span, call: FunctionCall, result: ToolResult) -> None:
    """A tool call on its own lane, beside the others and beside the end of decoding."""
    trace.add(
        f"tool:{call.name}",
        result.start_ns,
        result.end_ns,
        lane="tools",
        parent=trace.index(parent),
        failed=result.failed,
        cached=result.cached,
        output_chars=len(result.output),
    )
