"""What a remote model needs of the network. Connections are managed above: see `worker.engines`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Answer(NamedTuple):
    """A complete response; `retry_after_s` is taken from its headers."""

    status: int
    body: bytes
    retry_after_s: float | None = None


class Receiver(Protocol):
    """The sender of a request. Called in the iteration of the event loop in which data arrives; nothing is called after
    `refused` or `lost`."""

    def begun(self) -> None:
        """The engine has accepted the request: status 200."""
        ...

    def refused(self, answer: Answer) -> None:
        """Any other status."""
        ...

    def received(self, data: bytes) -> None:
        """A piece of the body, cut anywhere."""
        ...

    def told(self, ids: Sequence[int]) -> None:
        """Tokens of a step, if the engine sends them without an event: see `inference.remote.frames`."""
        ...

    def lost(self, reason: str, *, reached: bool) -> None:
        """The connection was lost, even after a whole body. `reached`: the engine had responded with something."""
        ...


class Exchange(Protocol):
    """A request and its response in flight."""

    def close(self) -> None:
        """Close the connection, which tells the engine that the client is gone; the receiver is not called any more."""
        ...


class Transport(Protocol):
    """`url` is the address of an engine; `path` starts with a slash."""

    def post(self, url: str, path: str, body: bytes, receiver: Receiver, traceparent: str = "") -> Exchange:
        """Send a request, as part of a trace if there is one; never blocks and never raises. With the path of `frames`,
        it uses a connection shared between requests, if possible."""
        ...

    async def get(self, url: str, path: str, timeout_s: float) -> Answer:
        """Raises ConnectionError if nothing responds there, and TimeoutError without a response in time."""
        ...

    def close(self) -> None:
        """Close idle connections."""
        ...
