"""The trace of one turn: spans stamped with one monotonic clock, kept in plain slots.

A span costs about a microsecond to record; it is exported elsewhere, after the answer.
Spans on the lane "main" tile the wall clock of the turn; other lanes run concurrently by design
(retrieval beside prefill, tools beside each other).
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeAlias

Attribute: TypeAlias = str | int | float | bool | None

SPANS_MAX = 512  # a runaway tool loop must not grow a trace without bound; further spans are only counted


def random_id(bits: int) -> str:
    """Lower-case hex digits for an id that must be unique but not secret: the system's random source would take ten
    times as long."""
    return f"{random.getrandbits(bits):0{bits // 4}x}"


now_ns = time.monotonic_ns  # of the process, the only clock of spans


@dataclass(slots=True)
class Span:
    """A named interval. `end_ns` is 0 while it is open; `parent` is an index into the trace's spans.

    It can be used as a context manager: an exception propagates and leaves its type in the attribute `error.type`.
    """

    name: str
    start_ns: int
    end_ns: int = 0
    lane: str = "main"
    parent: int | None = None
    attributes: dict[str, Attribute] = field(default_factory=dict)

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.attributes["error.type"] = kind.__name__
        self.end_ns = now_ns()

    @property
    def duration_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6 if self.end_ns > self.start_ns else 0.0


@dataclass(slots=True)
class Trace:
    """All spans of one turn, plus attributes of the turn as a whole.

    `id` is a W3C trace id (32 hex digits), taken from an inbound `traceparent` if there is one.
    """

    id: str = field(default_factory=lambda: random_id(128))
    start_ns: int = field(default_factory=now_ns)
    started_at: float = field(default_factory=time.time)
    end_ns: int = 0
    spans: list[Span] = field(default_factory=list)
    attributes: dict[str, Attribute] = field(default_factory=dict)
    dropped: int = 0

    def add(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        lane: str = "main",
        parent: int | None = None,
        **attributes: Attribute,
    ) -> Span:
        """Record an interval whose timestamps were taken elsewhere (the engine stamps, the layers above add spans)."""
        span = Span(name, start_ns, end_ns, lane, parent, attributes)
        if len(self.spans) < SPANS_MAX:
            self.spans.append(span)
        else:
            self.dropped += 1
        return span

    def span(self, name: str, *, lane: str = "main", parent: int | None = None, **attributes: Attribute) -> Span:
        """A span that starts now, to be used as a context manager."""
        return self.add(name, now_ns(), 0, lane=lane, parent=parent, **attributes)

    def index(self, span: Span) -> int | None:
        """Position of a recorded span, to be used as `parent` of its children; None if it was dropped."""
        return next((i for i, other in enumerate(self.spans) if other is span), None)

    @property
    def traceparent(self) -> str:
        """The header that makes the spans of other services part of this trace (W3C Trace Context); empty if the root
        span has no id."""
        root = self.attributes.get("span_id")
        return f"00-{self.id}-{root}-01" if root else ""

    def finish(self) -> None:
        """Close the trace and any span that an abandoned turn left open."""
        self.end_ns = now_ns()
        for span in self.spans:
            span.end_ns = span.end_ns or self.end_ns

    @property
    def duration_ms(self) -> float:
        return ((self.end_ns or now_ns()) - self.start_ns) / 1e6
