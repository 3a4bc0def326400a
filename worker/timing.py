"""The two numbers that people feel, computed from a turn's own spans."""

from __future__ import annotations

from inference.trace import Trace, now_ns


def mark_first_token(trace: Trace) -> None:
    """Call when the first piece of an answer has been handed to the socket: adds the span `first_token`."""
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
