"""What a remote model needs of the network. Connections are managed above: see `worker.engines`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct, unpack_from
from typing import NamedTuple, Protocol

import orjson

from inference.remote.protocol import MalformedStream


class Answer(NamedTuple):
    """A complete response; `retry_after_s` is taken from its headers."""

    status: int
    body: bytes
    retry_after_s: float | None = None


class Receiver(Protocol):
    """The sender of a request. Called as data arrives; nothing is called after `refused` or `lost`."""

    def begun(self) -> None:
        """The engine has accepted the request: status 200."""

    def refused(self, answer: Answer) -> None:
        """Any other status."""

    def received(self, data: bytes) -> None:
        """A piece of the body, cut anywhere."""

    def generated(self, ids: Sequence[int]) -> None:
        """Tokens of a step, if the engine sends them without an event: see STEP."""

    def lost(self, reason: str, *, reached: bool) -> None:
        """The connection was lost, even after a whole body. `reached`: the engine had responded with something."""


class Exchange(Protocol):
    """A request and its response in flight."""

    def close(self) -> None:
        """Close the connection, which tells the engine that the client is gone; the receiver is not called any more."""


class Transport(Protocol):
    """`url` is the address of an engine; `path` starts with a slash."""

    def post(self, url: str, path: str, body: bytes, receiver: Receiver, traceparent: str = "") -> Exchange:
        """Send a request, as part of a trace if there is one; never blocks and never raises. With PATH, it uses a
        connection shared between requests, if possible."""

    async def get(self, url: str, path: str, timeout_s: float) -> Answer:
        """Raises ConnectionError if nothing responds there, and TimeoutError without a response in time."""

    def close(self) -> None:
        """Close idle connections."""


# The connection that all requests of a worker to one engine of this project share. A frame is the length of its content
# (4 bytes), its kind (1), the number of its request (4), and the content. Numbers are little-endian. The tokens of a
# step for all requests are one frame, so they cost one write, one read and one wake-up for any number of requests.
# Everything else of a response consists of the same events as elsewhere.
PATH = "/inference/v1/channel"
PROTOCOL = "firsttoken-channel"  # in the header Upgrade
ASK, CANCEL = 1, 2  # from a worker. ASK: a `traceparent`, a line feed and the body. CANCEL: no content
TAKEN, REFUSED, EVENTS, LAST, STEP = 16, 17, 18, 19, 20  # from an engine: none; status and body; events; see `step`
OF_ALL = 0  # the number of a frame that belongs to no single request
ANSWER_BYTES_MAX = 16 * 2**20  # per frame of an engine: a step of many answers with alternatives is some hundred kB
RETRY_AFTER_S_MAX = 86_400.0  # passed on to clients, which would not wait for longer
_HEAD = Struct("<IBI")
_BYTES = 4  # of a number in a step


class Frame(NamedTuple):
    kind: int
    number: int
    content: bytes


class Frames:
    """Splits incoming data into frames. Raises MalformedStream for one that is too long."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        whole: bytes | bytearray = data
        if self._rest:
            self._rest += data
            whole = self._rest
        at, end = 0, len(whole)
        while end - at >= _HEAD.size:
            length, kind, number = _HEAD.unpack_from(whole, at)
            if length > self._bytes_max:
                raise MalformedStream(f"a frame of {length} bytes")
            behind = at + _HEAD.size + length
            if behind > end:
                break
            yield Frame(kind, number, bytes(whole[at + _HEAD.size : behind]))
            at = behind
        if whole is self._rest:
            del self._rest[:at]  # nothing is moved while a long frame arrives
        elif at < end:
            self._rest += data[at:]


def frame(kind: int, number: int, content: bytes = b"") -> bytes:
    return _HEAD.pack(len(content), kind, number) + content


def ask(number: int, body: bytes, traceparent: str) -> bytes:
    return frame(ASK, number, b"%b\n%b" % (traceparent.encode(), body))


def step(numbers: Sequence[int]) -> bytes:
    """`numbers` holds, for each request, its number, its count of tokens, and the tokens."""
    return frame(STEP, OF_ALL, Struct(f"<{len(numbers)}I").pack(*numbers))


def read_step(content: bytes) -> Iterator[tuple[int, Sequence[int]]]:
    """Requests and their tokens. Raises MalformedStream."""
    if len(content) % _BYTES:
        raise MalformedStream("a truncated step")
    numbers, at = unpack_from(f"<{len(content) // _BYTES}I", content), 0
    while at < len(numbers):
        begin = at + 2
        at = begin + (numbers[at + 1] if begin <= len(numbers) else len(numbers))
        if at > len(numbers):
            raise MalformedStream("a truncated step")
        yield numbers[begin - 2], numbers[begin:at]


def refusal(number: int, status: int, body: object, retry_after_s: float | None) -> bytes:
    content = {"status": status, "retry_after_s": retry_after_s, "body": body}
    return frame(REFUSED, number, orjson.dumps(content))


def read_refusal(content: bytes) -> Answer:
    """Raises MalformedStream."""
    try:
        fields = orjson.loads(content)
        status, retry_after_s = fields["status"], fields["retry_after_s"]
        if not (400 <= status < 600 and (retry_after_s is None or 0 <= retry_after_s <= RETRY_AFTER_S_MAX)):
            raise ValueError("its status or delay is not that of a refusal")
        return Answer(int(status), orjson.dumps(fields["body"]), retry_after_s)
    except (ValueError, TypeError, KeyError) as error:
        raise MalformedStream(f"an unreadable refusal: {error!r}") from None
