"""The record of a finished turn, for the caller, operators and metrics, with the times that users notice, and whether
they met the targets of its surface. The share of those that did is the goodput: Zhong et al. 2024, "DistServe:
disaggregating prefill and decoding for goodput-optimized large language model serving".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from agents.events import TOKENS, ArgumentsDelta, Event, TextDelta
from inference.frozen import dataclass
from inference.trace import Span, Trace, now_ns

if TYPE_CHECKING:  # the configuration needs the targets, and `--help` nothing of agents
    from agents.definition import Surface

FAILED = ("failed", "refused")
APART = ("cancelled", "invalid")  # not judged: the client left, or no server could have answered
FIRST_ANSWER = "firsttoken.first_answer_ms"  # the attribute of a trace
HIT_SHARE = 0.9  # of a prompt: the question itself is never cached


def mark_first_token(trace: Trace, *, of_call: bool = False) -> None:
    """Call this when the first delta of an answer is sent: adds the span `first_token`. A call has been written up to
    its arguments by then: nothing is sent of its marks and its name."""
    now = now_ns()
    prefilled = next((span.end_ns for span in reversed(trace.spans) if span.name == "prefill"), now)
    span = trace.add("first_token", prefilled, now)
    if of_call:
        span.attributes["of"] = "call"


def mark_first_answer(trace: Trace, *, after_others: bool) -> None:
    """Call this when the first text of an answer is sent. If reasoning or a call came before it, it gets the span
    `first_answer`, from the arrival of the request on."""
    now = now_ns()
    trace.attributes[FIRST_ANSWER] = round((now - trace.start_ns) / 1e6, 3)
    if after_others:
        trace.add("first_answer", trace.start_ns, now, lane="answer")


class FirstTokens:
    """Marks in a trace when the first token of a turn was sent, and the first one of its answer. `were_sent`: by
    another worker, in another trace."""

    def __init__(self, trace: Trace, *, were_sent: bool = False) -> None:
        self._trace = trace
        self._has_begun = self.have_answered = were_sent
        self._unsent: list[tuple[int, Callable[[Trace], None]]] = []

    def made(self, events: Iterable[Event], number: int = 0) -> None:
        """The events are to be sent under this number."""
        if self.have_answered:  # nearly always
            return
        for event in events:
            if not isinstance(event, TOKENS):
                continue
            if not self._has_begun:
                of_call = partial(mark_first_token, of_call=True)
                self._unsent.append((number, of_call if isinstance(event, ArgumentsDelta) else mark_first_token))
            if isinstance(event, TextDelta) and not self.have_answered:
                self.have_answered = True
                self._unsent.append((number, partial(mark_first_answer, after_others=self._has_begun)))
            self._has_begun = True

    def sent(self, before: int = 1) -> None:
        """What has a number below this one was sent."""
        while self._unsent and self._unsent[0][0] < before:
            _, mark = self._unsent.pop(0)
            mark(self._trace)


def ttft_ms(trace: Trace) -> float | None:
    """Time to first token: from the arrival of the request to the first bytes of the answer's text."""
    ends = [span.end_ns for span in trace.spans if span.name == "first_token"]
    return (ends[0] - trace.start_ns) / 1e6 if ends else None


def ttfa_ms(trace: Trace) -> float | None:
    """Time to the first token of the answer, behind reasoning and calls; None for a turn without text."""
    value = trace.attributes.get(FIRST_ANSWER)
    return value if isinstance(value, float) else None


def tpot_ms(trace: Trace) -> float | None:
    """Time per output token after the first; the tools and prefills between the steps of a turn do not count."""
    steps = [
        (span.duration_ms, int(span.attributes.get("tokens") or 0)) for span in trace.spans if span.name == "decode"
    ]
    gaps = sum(max(0, tokens - 1) for _, tokens in steps)
    return sum(duration_ms for duration_ms, _ in steps) / gaps if gaps else None


class TurnCost(NamedTuple):
    """The cost of a turn: its price, and milliseconds of the engine and of tools. Of the engine's time,
    `speculation_ms` went to rejected drafts, and `cascade_ms` to steps that another model took over."""

    cost: float
    engine_ms: float
    speculation_ms: float
    tool_ms: float
    cascade_ms: float


def _amount(trace: Trace, name: str) -> float:
    value = trace.attributes.get(f"firsttoken.{name}")
    return float(value) if isinstance(value, (int, float)) else 0.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens, and how many of them were cached."""

    total: int
    cached: int


def first_prompt(trace: Trace) -> Prompt | None:
    """What was cached when the turn began: later steps find what the first one has prefilled. None if no prompt was
    read: its answer was known, or an engine does not say."""
    first = next((span for span in trace.spans if span.name == "prefill"), None)
    if first is None:
        return None
    cached, new = _number(first, "cached_tokens"), _number(first, "new_tokens")
    ahead = (span for span in trace.spans if span.name == "prefill_prefix" and span.start_ns < first.end_ns)
    return Prompt(cached + new, max(0, cached - sum(_number(span, "new_tokens") for span in ahead)))


SPAN_NAMES_MAX = 64  # tools name their spans
OTHER_SPAN = "other"


class SpanNames:
    """Those that are told apart: the first ones that were met. All others share one name, so that made-up ones fill
    neither tables nor metrics."""

    def __init__(self) -> None:
        self.met: set[str] = {OTHER_SPAN}

    def known(self, name: str) -> str:
        if name not in self.met and len(self.met) > SPAN_NAMES_MAX:
            return OTHER_SPAN
        self.met.add(name)
        return name


def _number(span: Span, name: str) -> int:
    value = span.attributes.get(name)
    return int(value) if isinstance(value, int) else 0


@dataclass(frozen=True)
class TurnRecord:
    """The trace of a turn that has ended, and what the edge knows of it. Times are milliseconds."""

    trace: Trace
    tenant_id: UUID
    status: str
    surface: str
    model: str
    response_id: str | None = None
    conversation_id: str | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    within_target: bool | None = None
    agent: str = ""
    key: str = ""  # the id of the API key; empty for browser sessions and JWTs

    @property
    def ttfa_ms(self) -> float | None:
        return ttfa_ms(self.trace)

    @cached_property
    def taken(self) -> TurnCost:
        return TurnCost(*(_amount(self.trace, name) for name in TurnCost._fields))

    @property
    def id(self) -> str:
        """The id by which the turn is stored and found: several turns may be part of one trace of the caller."""
        if "parent_id" in self.trace.attributes:
            return f"{self.trace.id}-{self.trace.attributes['span_id']}"
        return self.trace.id

    @property
    def key_id(self) -> str:
        """Embeddings and the like record it in their trace only."""
        return self.key or str(self.trace.attributes.get("firsttoken.key", ""))

    @property
    def tokens(self) -> int:
        """Read and generated, over all steps."""
        return sum(self.counted("prefill", read) for read in ("cached_tokens", "new_tokens")) + self.output_tokens

    def row(self) -> dict[str, Any]:
        """The columns of the table traces."""
        return {
            "id": self.id,
            **self._facts,
            "started_at": datetime.fromtimestamp(self.trace.started_at, UTC).isoformat(),
            "duration_ms": self.trace.duration_ms,
            "prompt_tokens": self.prompt.total,
            "cached_tokens": self.prompt.cached,
            "output_tokens": self.output_tokens,
        }

    @cached_property
    def prompt(self) -> Prompt:
        return first_prompt(self.trace) or Prompt(0, 0)

    @property
    def output_tokens(self) -> int:
        return self.counted("decode", "tokens")

    def counted(self, span_name: str, attribute: str) -> int:
        """Over all steps."""
        return sum(_number(span, attribute) for span in self.trace.spans if span.name == span_name)

    @property
    def miss_causes(self) -> list[str]:
        """Why prompts were not cached, one for each step in which they were not."""
        causes = (span.attributes.get("cache.cause") for span in self.trace.spans if span.name == "prefill")
        return [cause for cause in causes if isinstance(cause, str)]

    def span_rows(self) -> list[dict[str, Any]]:
        """The columns of the table spans; times in microseconds from the start of the trace."""
        id = self.id
        return [
            {
                "trace_id": id,
                "ordinal": ordinal,
                "parent": span.parent,
                "name": span.name,
                "lane": span.lane,
                "start_us": (span.start_ns - self.trace.start_ns) // 1000,
                "duration_us": max(0, span.end_ns - span.start_ns) // 1000,
                "attributes": span.attributes,
            }
            for ordinal, span in enumerate(self.trace.spans)
        ]

    def payload(self) -> dict[str, Any]:
        """The public JSON of the trace, as `firsttoken:trace` and /ops/api/traces/{id} carry it."""
        return {
            "id": self.id,
            "started_at": self.trace.started_at,
            "duration_ms": round(self.trace.duration_ms, 3),
            **self._facts,
            "spans": [
                {
                    "name": span.name,
                    "lane": span.lane,
                    "parent": span.parent,
                    "start_ms": round((span.start_ns - self.trace.start_ns) / 1e6, 3),
                    "duration_ms": round(span.duration_ms, 3) if span.end_ns else None,
                    "attributes": span.attributes,
                }
                for span in self.trace.spans
            ],
        }

    @property
    def cache(self) -> str | None:
        """How much of the first prompt was cached; None where no prompt was read."""
        prompt = self.prompt
        if not prompt.total:
            return None
        if not prompt.cached:
            return "miss"
        return "hit" if prompt.cached >= HIT_SHARE * prompt.total else "partial"

    @property
    def outcome(self) -> str:
        """How it counts for goodput: `in_time` is good; `late`, `refused` and `failed` are bad; the others do not
        count."""
        if self.status in APART or self.within_target is None:
            return self.status if self.status in APART else "not_judged"
        if self.within_target:
            return "in_time"
        return self.status if self.status in FAILED else "late"

    @property
    def _facts(self) -> dict[str, Any]:
        return {
            "ttft_ms": self.ttft_ms,
            "tpot_ms": self.tpot_ms,
            "status": self.status,
            "surface": self.surface,
            "model": self.model,
            "agent": self.agent,
            "response_id": self.response_id,
            "conversation_id": self.conversation_id,
            "within_target": self.within_target,
            "attributes": self.trace.attributes,
        }


USUAL_TARGETS = "chat=500/100,embedded=500/100,voice=300/50"  # users read about ten tokens a second
OBJECTIVE = 0.95  # the share of turns that should meet their targets
_TARGET = re.compile(r"([a-z][a-z0-9_-]{0,31})=(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Target:
    """Upper limits in milliseconds: TTFT, TPOT (time per output token after the first), and TTFA (time to the first
    token of the answer itself, behind reasoning and calls)."""

    ttft_ms: float
    tpot_ms: float
    ttfa_ms: float = inf

    def __str__(self) -> str:
        told = [("first token", self.ttft_ms), ("first answer", self.ttfa_ms), ("pace", self.tpot_ms)]
        return ", ".join(f"{name} {limit:g} ms" for name, limit in told if limit != inf)


NO_TARGET = Target(inf, inf)


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of the surfaces that have one."""

    by_surface: Mapping[str, Target] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Targets:
        """Parse `chat=500/100,voice=300/50`. Raises ValueError with the mistake as its message."""
        found: dict[str, Target] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = _TARGET.fullmatch(part)
            if match is None:
                raise ValueError(f"must look like chat=500/100, not {part!r}")
            surface, ttft_ms, tpot_ms = match.groups()
            if surface in found:
                raise ValueError(f"names {surface} twice")
            found[surface] = Target(float(ttft_ms), float(tpot_ms))
        return cls(found)

    def with_those_of(self, surfaces: Mapping[str, Surface]) -> Targets:
        """These targets, overridden by those of a file."""
        own = {}
        for name, each in surfaces.items():
            usual = self.by_surface.get(name, NO_TARGET)
            target = Target(
                each.first_token_ms or usual.ttft_ms,
                each.pace_ms or usual.tpot_ms,
                each.first_answer_ms or usual.ttfa_ms,
            )
            if target != NO_TARGET:
                own[name] = target
        return Targets({**self.by_surface, **own})

    def met(
        self, surface: str, status: str, ttft_ms: float | None, tpot_ms: float | None, ttfa_ms: float | None
    ) -> bool | None:
        """Whether a turn met its target. None for turns that are not judged: those of surfaces without a target,
        cancelled ones, and invalid requests that no server could answer. A response of one token has no TPOT, and one
        that only calls a tool no TTFA; one without any token is late.
        """
        target = self.by_surface.get(surface)
        if target is None or status in APART:
            return None
        if status in FAILED or ttft_ms is None:
            return False
        return ttft_ms <= target.ttft_ms and (tpot_ms or 0) <= target.tpot_ms and (ttfa_ms or 0) <= target.ttfa_ms
