"""Event sinks of the benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from agents.events import Event, EventList, TextDelta
from inference.trace import now_ns


class FirstText(EventList):
    """Keeps all events, and the time of the first text: nanoseconds on the monotonic clock, 0 if there is none."""

    text_ns: int = 0

    def write(self, events: Sequence[Event]) -> None:
        if not self.text_ns and any(isinstance(event, TextDelta) for event in events):
            self.text_ns = now_ns()
        super().write(events)
