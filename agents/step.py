"""One step of a turn: a generation, the items it becomes, the tools that start while it runs, and its spans."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from agents.answer_cache import CacheAnswer
from agents.events import Event, EventSink, ItemFinished, Queued
from agents.message import FunctionCall
from agents.reply import Reply
from agents.router import Candidate
from agents.tool import ToolContext
from agents.toolbox import AvailableTools, Toolbox, ToolResult
from agents.turn import Budget
from inference.generation import Delta, Finish, Generation, Hop, Priority, Steps
from inference.prompt import Verdict
from inference.trace import Attribute, Span, Trace, now_ns

# The shortest wait that is worth a prefill: about as long as building a prompt and running a small step take.
MOMENT_S = 0.005
LOST = "the worker that ran this call was lost; whether it was carried out is not known, so it was not repeated"

STOPPED = "this call was stopped before it had a result"

Pending: TypeAlias = asyncio.Task[ToolResult] | ToolResult


@dataclass(slots=True)
class RunningCalls:
    """The server-side calls of one step: each starts as soon as its arguments are complete, all run concurrently.

    If another worker may resume the turn, a call that must not run twice starts only once it is `stored` that it will
    run.
    """

    toolbox: Toolbox
    offered: frozenset[str]
    context: ToolContext
    budget: Budget
    pending: list[tuple[FunctionCall, Pending]] = field(default_factory=list)  # in the order of the calls
    stored: Callable[[], Awaitable[None]] | None = None
    answered: int = 0  # the results of this many leading calls were sent before
    lost: bool = False  # the calls that follow were started by a lost worker
    stopped: bool = False  # no further call starts

    def start(self, call: FunctionCall) -> None:
        """Start a complete call. If it may not run, its result is the reason."""
        limits, remaining_s = self.budget.limits, self.budget.remaining_s(now_ns())
        if call.name not in self.offered:
            self.refuse(call, f"there is no tool named '{call.name}'")
        elif not self.budget.admit(call.name, call.arguments) or remaining_s <= 0:
            self.refuse(call, "not run, the tool budget is exhausted")
        elif len(self.pending) < self.answered or (self.lost and not self.toolbox.repeats(call.name)):
            self.refuse(call, LOST)
        elif self.stopped:
            self.refuse(call, STOPPED)
        else:
            running = self._run(call, min(limits.tool_seconds, remaining_s))
            self.pending.append((call, asyncio.create_task(running, name=f"tool:{call.name}")))

    async def _run(self, call: FunctionCall, timeout_s: float) -> ToolResult:
        if self.stored is not None and not self.toolbox.repeats(call.name):
            await self.stored()
        chars = self.budget.limits.tool_result_chars
        return await self.toolbox.run(call.name, call.arguments, self.context, timeout_s=timeout_s, result_chars=chars)

    def refuse(self, call: FunctionCall, reason: str) -> None:
        self.pending.append((call, ToolResult.error(reason)))

    def cancel(self) -> None:
        """Cancel the calls that still run, and those that are still being written; their results say so."""
        self.stopped = True
        for _, result in self.pending:
            if isinstance(result, asyncio.Task):
                result.cancel()


@dataclass(slots=True)
class StepSpans:
    """Spans from the timestamps of the engine, which has no spans: a batch has no single owner.

    queue and prefill are added at the first token, decode at the end of the step; both methods are idempotent. The
    cause of a cache miss is added at the end: finding it must not delay the first token.

    For remote engines, `connect` is the time before the queue that no engine accounts for: the network, both ways, and
    failed attempts. Each engine that was tried has a span `engine` on a lane of its own.
    """

    trace: Trace
    generation: Generation
    verdict: Callable[[], Verdict | None]
    model: str = ""  # if there are several
    priority: Priority = Priority.STANDARD
    has_prefill: bool = False
    queue_position: int | None = None  # as first reported to the client
    image_tokens: int = 0  # of the prompt
    _prefill: Span | None = None
    _decoded: bool = False

    def prefilled(self) -> None:
        if self.has_prefill:
            return
        self.has_prefill = True
        stamps = self.generation.facts.stamps
        queued_ns = self._connected() if self.generation.facts.hops else stamps.submitted_ns
        queue = self.trace.add("queue", queued_ns, stamps.admitted_ns or now_ns())
        queue.attributes["class"] = self.priority.name.lower()
        if forecast := self.generation.facts.forecast:
            queue.attributes["expected_ms"] = round(forecast.total_s * 1e3, 3)
            queue.attributes["expected_wait_ms"] = round(forecast.wait_s * 1e3, 3)
            queue.attributes["took_ms"] = ((stamps.first_token_ns or now_ns()) - stamps.submitted_ns) / 1e6
        if self.queue_position is not None:
            queue.attributes["place"] = self.queue_position
        if stamps.admitted_ns:
            cached = self.generation.facts.cached_tokens
            self._prefill = self.trace.add(
                "prefill",
                stamps.admitted_ns,
                stamps.prefilled_ns or now_ns(),
                new_tokens=self.generation.prompt_tokens - cached,
                cached_tokens=cached,
            )
            if self.image_tokens:
                sight_ms = self.generation.facts.spent.sight_ns / 1e6
                self._prefill.attributes |= {"image_tokens": self.image_tokens, "sight_ms": sight_ms}
            self._prefill.attributes |= _batch("chunks", self.generation.facts.prefill_steps)
            self._name(self._prefill)

    def _connected(self) -> int:
        """When the request was queued by a remote engine."""
        stamps, hops = self.generation.facts.stamps, self.generation.facts.hops
        arrived_ns = stamps.arrived_ns or now_ns()
        lost = [hop.ending for hop in hops if hop.ending]
        connect = self.trace.add("connect", stamps.submitted_ns, arrived_ns, retries=len(hops) - 1)
        if lost:
            connect.attributes["retry_reason"] = lost[-1]
        return arrived_ns

    def decoded(self, reasoning_tokens: int = 0) -> None:
        """Also for a step that was abandoned: a phase that never started gets no span."""
        if self._decoded:
            return
        self._decoded = True
        self.prefilled()
        self._judge()
        for hop in self.generation.facts.hops:
            add_engine(self.trace, hop)
        stamps = self.generation.facts.stamps
        if stamps.first_token_ns:
            end_ns = stamps.last_token_ns or stamps.first_token_ns
            generation = self.generation
            decode = self.trace.add(
                "decode",
                stamps.first_token_ns,
                end_ns,
                tokens=len(generation.ids),
                drafted=generation.facts.acceptance.drafted,
                accepted=generation.facts.acceptance.accepted,
            )
            decode.attributes |= _batch("steps", generation.facts.decode_steps)
            if reasoning_tokens:
                decode.attributes["reasoning_tokens"] = reasoning_tokens
            self._name(decode)

    def _name(self, span: Span) -> None:
        if self.model:
            span.attributes["model"] = self.model

    def _judge(self) -> None:
        verdict = self.verdict() if self._prefill else None
        if self._prefill and verdict and verdict.cause:
            self._prefill.attributes |= {"cache.segment": str(verdict.segment), "cache.cause": str(verdict.cause)}


@dataclass(slots=True)
class Step:
    candidate: Candidate
    generation: Generation
    reply: Reply
    calls: RunningCalls
    spans: StepSpans
    offer: AvailableTools
    prompt: Sequence[int] = ()  # for another model or worker that continues it
    thinking: bool = False  # the prompt ends within a thought
    cache_answer: CacheAnswer | None = None  # if there is a cache
    generated: list[str] = field(default_factory=list)  # the text, in pieces, if it is cached
    is_whole: bool = False  # all of the generation was received
    ended: bool = False
    fed: int = 0  # tokens of the generation that were processed
    outside: int = 0  # those that precede the newest call or mark
    reasoning_tokens: int = 0

    async def run(self, sink: EventSink) -> None:
        """Write the events of the generation as its tokens come. Raises InferenceError when the engine fails."""

        def receive(delta: Delta) -> None:
            if events := self.feed(delta):
                sink.write(events)

        await self.generation.stream(receive)
        self.is_whole = True

    def feed(self, delta: Delta) -> list[Event]:
        if not self.spans.has_prefill:
            self.spans.prefilled()
        # The answer ends with the token that completes a stop string, even if the engine has not yet heard of it; and
        # the log probabilities of a text are those of its tokens, not of the marks beside it.
        reply = self.reply
        if delta.parts and (reply.stops or reply.forced or delta.logprobs):
            events = [event for part in delta.parts for event in self._feed(part)]
        else:
            events = self._feed(delta)
        if reply.over:
            self.generation.cancel()
        return events

    def _feed(self, delta: Delta) -> list[Event]:
        if self.reply.over:
            return []
        self.fed += delta.tokens
        if self.cache_answer is not None:
            self.generated.append(delta.text)
        events = self._read(delta)
        if self.reply.thinking:
            self.reasoning_tokens += delta.tokens
        if self.reply.forced and self.reply.parser.is_outside:
            self.outside = self.fed
        return events

    def _read(self, delta: Delta) -> list[Event]:
        return self._started(self.reply.feed(delta.text, delta.logprobs))

    @property
    def is_kept(self) -> bool:
        """Whether what it says is sent: see `StepOnTrial`."""
        return True

    @property
    def finish(self) -> Finish | None:
        """Why the step ended, if it has."""
        return Finish.STOP if self.reply.over else self.generation.finish

    @property
    def said_ids(self) -> Sequence[int]:
        """The tokens of what counts: not those of a call that repeats another one."""
        return self.generation.ids[: self.outside] if self.reply.repeats else self.generation.ids

    @property
    def ids(self) -> Sequence[int]:
        """The tokens of the step, up to the one that ended the answer."""
        return self.generation.ids[: self.fed] if self.reply.over else self.generation.ids

    def replay(self, texts: Sequence[str]) -> list[Event]:
        """Restore the step of a lost worker from the texts of the tokens that it had generated. Returns the events that
        were sent."""
        events: list[Event] = []
        for text in texts:
            events += self._started(self.reply.feed(text))
            self.reasoning_tokens += self.reply.thinking
        self.fed = len(self.generation.ids)
        return events

    def end(self, *, fallback: str | None = "") -> list[Event]:
        """The last events of the step. Idempotent: none the second time."""
        if self.ended:
            return []
        self.ended = True
        self.spans.decoded(self.reasoning_tokens)
        return self._started(self.reply.finish(cut_off=self.finish is not Finish.STOP, fallback=fallback))

    def cancel(self) -> None:
        """Free the sequence and cancel the tools. Idempotent, and never waits."""
        self.generation.cancel()
        self.calls.cancel()
        self.spans.decoded(self.reasoning_tokens)

    def steer(self, *, stop_tools: bool) -> None:
        """End early: at once, or once the calls that it has begun have their results."""
        if not any(isinstance(item, FunctionCall) for item in self.reply.begun):
            self.generation.cancel()
        if stop_tools:
            self.calls.cancel()

    @property
    def needs_another_step(self) -> bool:
        """Whether another step follows with the results of the tools: not if the caller has to run a function first."""
        if not self.calls.pending or self.finish is not Finish.STOP:
            return False
        return not any(call.name in self.offer.functions and call.runs for call in self.reply.calls)

    def _started(self, events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, ItemFinished) and isinstance(event.item, FunctionCall):
                self._take(event.item)
        return events

    def _take(self, call: FunctionCall) -> None:
        """Start a call of a server tool. A call that was cut off never runs, and the caller runs its own functions, but
        never sees one that failed: the model is told why."""
        if call.status == "failed":
            self.calls.refuse(call, f"the tool call could not be read: {self.reply.broken[call.call_id]}")
        elif call.runs and call.name not in self.offer.functions:
            self.calls.start(call)


def _batch(name: str, steps: Steps) -> dict[str, Attribute]:
    """The number of engine steps and the mean batch size; empty if the engine does not report them."""
    return {name: steps.count, "batch": round(steps.batch, 1)} if steps.count else {}


async def takes_long(pending: Pending) -> bool:
    """Whether the result is still missing after MOMENT_S."""
    if isinstance(pending, asyncio.Task):
        await asyncio.wait({pending}, timeout=MOMENT_S)
    return isinstance(pending, asyncio.Task) and not pending.done()


async def settled(pending: Pending) -> ToolResult:
    if not isinstance(pending, asyncio.Task):
        return pending
    await asyncio.wait([pending])
    return ToolResult.error(STOPPED) if pending.cancelled() else pending.result()


def add_engine(trace: Trace, hop: Hop) -> None:
    """Add the span of a request to a remote engine: it ends with the engine, not with the step."""
    noted: dict[str, Attribute] = {
        "engine": hop.engine,
        "tokens": hop.tokens,
        "taken_ms": round((hop.taken_ns - hop.begun_ns) / 1e6, 3) if hop.taken_ns else None,
        "queue_ms": hop.queue_ms,
        "prefill_ms": hop.prefill_ms,
        "engine_ms": hop.engine_ms,
        "error.type": hop.ending or None,
    }
    span = trace.add("engine", hop.begun_ns, hop.ended_ns or now_ns(), lane="engine")
    span.attributes |= {name: value for name, value in noted.items() if value is not None}


def add_tool(trace: Trace, parent: Span, call: FunctionCall, result: ToolResult) -> None:
    """Add the span of a tool call, on a separate lane: calls overlap each other and the end of decoding."""
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


# Most requests are admitted by the next step: a position that is outdated when it arrives is not reported.
POSITION_AFTER_S = 0.1
POSITION_EVERY_S = 0.5  # at most this often: a position changes whenever a response ends


@contextmanager
def report_position(step: Step, sink: EventSink) -> Iterator[None]:
    """Report the position, then how much of the prompt is read, and each change of it, until the generation begins or
    the block ends."""
    telling = asyncio.create_task(_report(step, sink), name="queue position")
    try:
        yield
    finally:
        telling.cancel()


async def _report(step: Step, sink: EventSink) -> None:
    generation, last = step.generation, None
    await asyncio.sleep(POSITION_AFTER_S)
    while not generation.ids and generation.finish is None:
        position, read = generation.queue_position, generation.read_tokens
        if position is None and read is None:
            return
        if (position, read) != last:
            step.spans.queue_position = step.spans.queue_position or position
            sink.write([Queued(position or 0, _left_ms(step), None if position else read, generation.prompt_tokens)])
            last = position, read
        await asyncio.sleep(POSITION_EVERY_S)


def _left_ms(step: Step) -> float | None:
    """The time left until the first token, as it was forecast when the request arrived."""
    generation = step.generation
    if generation.facts.forecast is None:
        return None
    passed_s = (now_ns() - generation.facts.stamps.submitted_ns) / 1e9
    return round(max(0.0, generation.facts.forecast.total_s - passed_s) * 1e3, 1)
