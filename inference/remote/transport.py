"""What a remote model needs of the network. Connections lie above: see `worker.engines`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Answer(NamedTuple):
    """A whole answer; `retry_after_s` is what its headers say."""

    status: int
    body: bytes
    retry_after_s: float | None = None


class Receiver(Protocol):
    """Who posted a request. Called in the turn of the event loop in which something arrives; once `refused` or `lost`
    was called, nothing more is."""

    def begun(self) -> None:
        """The engine has taken the request: status 200."""
        ...

    def refused(self, answer: Answer) -> None:
        """Any other status."""
        ...

    def received(self, data: bytes) -> None:
        """Some of the body, cut anywhere."""
        ...

    def told(self, ids: Sequence[int]) -> None:
        """Tokens that a step brought, where engines tell them without more: see `inference.remote.frames`."""
        ...

    def lost(self, reason: str, *, reached: bool) -> None:
        """The connection is gone, also after a whole body. `reached`: the engine had answered something."""
        ...


class Exchange(Protocol):
    """A request and its answer on their way."""

    def close(self) -> None:
        """End the connection, by which the engine knows that nobody waits; the receiver is not called any more."""
        ...


class Transport(Protocol):
    """`url` is that of an engine, `path` begins with a slash."""

    def post(self, url: str, path: str, body: bytes, receiver: Receiver, traceparent: str = "") -> Exchange:
        """Send a request, as part of a trace if there is one; never waits and never raises. To the path of `frames`, it
        goes on a connection that requests share, if it can."""
        ...

    async def get(self, url: str, path: str, timeout_s: float) -> Answer:
        """Raises ConnectionError where nobody is, and TimeoutError where there is no answer in time."""
        ...

    def close(self) -> None:
        """End connections that nobody needs any more."""
        ...
