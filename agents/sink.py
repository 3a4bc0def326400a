"""Where the events of a turn go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from agents.events import Event


class EventSink(Protocol):
    """Takes the events of one turn, in the order that agents/events.py states."""

    async def open(self) -> None:
        """Called once, when everything that can be refused was checked and the first prompt is with the engine. What
        it raises refuses the turn."""
        ...

    def write(self, event: Event) -> None:
        """Take an event. Called in the callback that brings a step's tokens, so it never waits."""
        ...

    async def drain(self) -> None:
        """Return when the reader has taken enough of what was written. The turn waits here between two steps."""
        ...


@dataclass(slots=True)
class EventList:
    """A sink that keeps everything."""

    events: list[Event] = field(default_factory=list)

    async def open(self) -> None:
        pass

    def write(self, event: Event) -> None:
        self.events.append(event)

    async def drain(self) -> None:
        pass
