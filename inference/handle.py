"""The event loop's side of a request, and the news by which the engine's thread keeps it up to date."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from inference.errors import InferenceError
from inference.request import Request
from inference.sequence import Delta, Finish, TokenLogprob
from inference.verdict import Miss


@dataclass(frozen=True, slots=True)
class News:
    """What one step did for one request, on its way to the event loop."""

    handle: Handle
    token: int | None
    text: str
    finish: Finish | None = None
    error: InferenceError | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Handle:
    """The event loop's side of a request: a `Generation`. Only the loop reads and writes it."""

    def __init__(self, request: Request, wake: Callable[[], None]) -> None:
        self._request = request
        self._wake = wake
        self._deltas: deque[Delta] = deque()
        self._changed = asyncio.Event()
        self._error: InferenceError | None = None
        self.stamps = request.stamps
        self.ids: list[int] = []
        self.finish: Finish | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self._request.prompt)

    @property
    def cached_tokens(self) -> int:
        return self._request.reused

    @property
    def miss(self) -> Miss | None:
        return self._request.miss

    @property
    def drafted(self) -> int:
        return self._request.acceptance.drafted

    @property
    def accepted(self) -> int:
        return self._request.acceptance.accepted

    def cancel(self) -> None:
        if self.finish is None:
            self._request.cancelled = True
            self._wake()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while True:
            while self._deltas:
                yield self._deltas.popleft()
            if self._error:
                raise self._error
            if self.finish is not None:
                return
            self._changed.clear()
            await self._changed.wait()

    def receive(self, news: News) -> None:
        if news.token is not None:
            self.ids.append(news.token)
        if news.text or news.token is not None:
            self._deltas.append(Delta(news.text, int(news.token is not None), news.logprobs))
        self.finish, self._error = news.finish, news.error
        self._changed.set()


def deliver(news: list[News]) -> None:
    """What one step brought, on the event loop."""
    for item in news:
        item.handle.receive(item)
