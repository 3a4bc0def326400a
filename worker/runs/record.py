"""One finished turn: what the caller, the operators and the metrics are told of it, with the times that people feel."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from inference.trace import Trace, now_ns


def mark_first_token(trace: Trace) -> None:
    """Call when the first piece of an answer goes out to its reader: adds the span `first_token`."""
    now = now_ns()
    prefilled = next((span.end_ns for span in reversed(trace.spans) if span.name == "prefill"), now)
    trace.add("first_token", prefilled, now)


def ttft_ms(trace: Trace) -> float | None:
    """Time to first token: from the arrival of the request to the first bytes of the answer's text."""
    ends = [span.end_ns for span in trace.spans if span.name == "first_token"]
    return (ends[0] - trace.start_ns) / 1e6 if ends else None


def tpot_ms(trace: Trace) -> float | None:
    """Time per output token after the first; the tools and prefills between the steps of a turn do not count."""
    steps = [
        (span.duration_ms, int(span.attributes.get("tokens") or 0)) for span in trace.spans if span.name == "decode"
    ]
    gaps = sum(max(0, tokens - 1) for _, tokens in steps)
    return sum(duration_ms for duration_ms, _ in steps) / gaps if gaps else None


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn's trace, and what the edge knows of it. Times are milliseconds."""

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

    @property
    def id(self) -> str:
        """What the turn is stored and looked up by: several turns may be part of one trace of the caller's."""
        if "parent_id" in self.trace.attributes:
            return f"{self.trace.id}-{self.trace.attributes['span_id']}"
        return self.trace.id

    def row(self) -> dict[str, Any]:
        """The columns of the table traces."""
        return {
            "id": self.id,
            **self._facts,
            "started_at": datetime.fromtimestamp(self.trace.started_at, UTC).isoformat(),
            "duration_ms": self.trace.duration_ms,
        }

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
    def _facts(self) -> dict[str, Any]:
        return {
            "ttft_ms": self.ttft_ms,
            "tpot_ms": self.tpot_ms,
            "status": self.status,
            "surface": self.surface,
            "model": self.model,
            "response_id": self.response_id,
            "conversation_id": self.conversation_id,
            "within_target": self.within_target,
            "attributes": self.trace.attributes,
        }
