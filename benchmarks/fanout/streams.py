"""The client: many streams of one worker on raw sockets, in a process separate from the worker."""

from __future__ import annotations

import json
import re
import select
import socket
import time
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmarks.fanout.worker import WRAP_US

STAMP = re.compile(rb"@(\d{9})")
END = b"data: [DONE]"
RECEIVE_BYTES = 1 << 18

Ready: TypeAlias = dict[str, Any]  # the content of a worker's ready file


@dataclass(slots=True)
class Tally:
    """What arrived in a period of time."""

    tokens: int = 0
    size: int = 0  # in bytes
    events: int = 0
    ended: int = 0
    late_us: list[int] = field(default_factory=list)  # from the step that made a token to its arrival here

    def add(self, data: bytes) -> None:
        now_us = time.monotonic_ns() // 1000
        late = [(now_us - int(made)) % WRAP_US for made in STAMP.findall(data)]
        self.late_us += late
        self.tokens += len(late)
        self.size += len(data)
        self.events += data.count(b"data: ")


def request_of(api: str, key: str, number: int, tokens: int) -> bytes:
    """A streamed request; `api` is chat, stored or unstored."""
    text = f"Tell me something long about {number}."
    if api == "chat":
        path: str = "/v1/chat/completions"
        body: dict[str, Any] = {"stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": text}]}
    else:
        path = "/v1/responses"
        body = {"stream": True, "max_output_tokens": tokens, "input": text, "store": api == "stored"}
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Streams:
    """`count` connections to a worker. `open` sends one request on each, and with `again` the next one whenever an
    answer has ended.
    """

    def __init__(self, ready: Ready, api: str, count: int, tokens: int, *, again: bool = False) -> None:
        self._address = ("127.0.0.1", int(ready["url"].rsplit(":", 1)[1]))
        self._key, self._api, self._tokens, self._again = ready["api_key"], api, tokens, again
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._tails: dict[int, bytes] = {}  # the end of the last chunk: an end mark may be split over two chunks
        self._asked = 0
        self.count = count

    def open(self) -> Tally:
        opening = Tally()
        for number in range(self.count):
            connection = socket.create_connection(self._address)
            self._sockets[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)
            self._ask(connection)
            if number % 16 == 15:  # spread out: the cost of accepting connections is not measured
                self.read(0.05, opening)
        return opening

    def _ask(self, connection: socket.socket) -> None:
        self._asked += 1
        self._tails[connection.fileno()] = b""
        connection.sendall(request_of(self._api, self._key, self._asked, self._tokens))

    def read(self, seconds: float, tally: Tally) -> None:
        """Read what arrives during `seconds` into `tally`. Raises SystemExit if a stream breaks."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for number, _ in self._poll.poll(left):
                connection = self._sockets[number]
                data = connection.recv(RECEIVE_BYTES)
                if not data:
                    raise SystemExit("the worker ended a stream")
                if not self._tails[number] and not data.startswith(b"HTTP/1.1 200"):
                    raise SystemExit(data[:500].decode(errors="replace"))
                tally.add(data)
                seen = self._tails[number] + data
                self._tails[number] = seen[-64:]
                if END in seen and seen.endswith(b"0\r\n\r\n"):
                    tally.ended += 1
                    if self._again:
                        self._ask(connection)

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()
        self._poll.close()
