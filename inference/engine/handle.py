"""The event loop's side of a request, and the one callback through which the engine's thread updates it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from inference.errors import InferenceError
from inference.frozen import dataclass
from inference.generation import Delta, DeltaStream, Finish, TokenLogprob
from inference.request import Request

# Requests flushed per callback: with a thousand requests, a new connection waits for about 2 ms instead of 30.
SLICE = 64
# About what the event loop needs for a token. Where it has no core of its own, a step of 16 rows that began before its
# tokens were delivered would take a quarter longer, as threads that meet at barriers wait for the one that was held up.
DELIVERY_S = 1e-4


@dataclass(frozen=True, slots=True)
class TokenUpdate:
    """The result of one step for one request, on its way to the event loop."""

    handle: Handle
    token: int | None
    text: str
    finish: Finish | None = None
    error: InferenceError | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Handle(DeltaStream):
    """The event loop's side of a request: a `Generation`."""

    def __init__(
        self, request: Request, wake: Callable[[], None], place_of: Callable[[Request], int | None] = lambda _: None
    ) -> None:
        super().__init__(request, len(request.prompt), request.generated)
        self._request = request
        self._wake = wake
        self._place_of = place_of

    @property
    def place(self) -> int | None:
        return self._place_of(self._request)

    async def admitted(self) -> None:
        """Returns immediately: the engine admits or refuses requests when they are submitted."""

    def cancel(self) -> None:
        if self.finish is None:
            self._request.cancelled = True
            self._wake()

    def end_thought(self) -> None:
        if self._request.thought is not None:
            self._request.thought.ending = True

    def take(self, news: TokenUpdate) -> bool:
        """Apply the result of a step. Returns whether the caller has to schedule `flush`."""
        token, text = news.token, news.text
        if token is not None:
            self.ids.append(token)
            self._deltas.append(Delta(text, 1, news.logprobs))
        elif text or news.logprobs:
            self._deltas.append(Delta(text, 0, news.logprobs))
        if news.finish is not None:
            self.finish, self._error = news.finish, news.error or self._error
        due, self._due = self._due, True
        return not due


class Outbox:
    """The results of steps on their way to the event loop: one callback for all pending steps.

    Pending tokens of one request are thereby delivered together, which lets a lagging loop catch up. Requests are
    flushed in slices, between which the loop runs everything else.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: deque[list[TokenUpdate]] = deque()
        self._due: deque[Handle] = deque()
        self._scheduled = False
        self._delivered = threading.Event()

    def publish(self, news: list[TokenUpdate]) -> None:
        """Called on the engine's thread; never blocks. Raises RuntimeError if the event loop is closed."""
        self._steps.append(news)
        if not self._scheduled:  # else the scheduled callback will take what was appended
            self._scheduled = True
            self._delivered.clear()
            self._loop.call_soon_threadsafe(self._deliver)

    def await_delivery(self, tokens: int) -> None:
        """Called on the engine's thread: let the event loop have its core until it has delivered what was published,
        or has had the time that so many tokens usually take it."""
        self._delivered.wait(tokens * DELIVERY_S)

    def _deliver(self) -> None:
        self._scheduled = False  # before taking: results published from here on schedule the next callback
        while self._steps:
            self._due += [news.handle for news in self._steps.popleft() if news.handle.take(news)]
        for _ in range(min(SLICE, len(self._due))):
            self._due.popleft().flush()
        if self._due and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._deliver)
        elif not self._due:
            self._delivered.set()
