"""Where benchmarks have the events of a turn go."""

from __future__ import annotations

from agents.events import Event, EventList, TextDelta
from inference.trace import now_ns


class FirstText(EventList):
    """Keeps all events, and notes when the first text came: nanoseconds on the monotonic clock, 0 if none did."""

    text_ns: int = 0

    def write(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self.text_ns = self.text_ns or now_ns()
        self.events.append(event)
