"""An incremental parser of one HTTP/1.1 response. Pure.

Client libraries wake a task for each chunk of a body, which costs more than the rest of a token's path; here chunks are
passed on by plain calls.
"""

from __future__ import annotations

HEAD_BYTES_MAX = 32 * 1024
CHUNK_BYTES_MAX = 2**20  # more than an engine's largest event, and more than proxies merge into one chunk
CHUNK_LINE_BYTES_MAX = 256
LENGTH_DIGITS_MAX = 15


class BadResponse(Exception):
    """The bytes are not HTTP, or exceed the limits."""


class HttpResponseParser:
    """`status` is 0 until the head has arrived. `whole`: the body is complete; a body without a length never is."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.whole = False
        self.ends_with_connection = False
        self._chunked = False
        self._left = 0  # remaining bytes of a body of known length
        self._rest = bytearray()  # received, but not parsed yet
        self._wanted = 0  # bytes needed before parsing is worth another attempt

    def feed(self, data: bytes) -> list[bytes]:
        """The chunks of the body in these bytes. Raises BadResponse."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return []
            data, self._rest = bytes(self._rest), bytearray()
        while not self.status:
            head, end, body = data.partition(b"\r\n\r\n")
            if len(head) > HEAD_BYTES_MAX:
                raise BadResponse("its head is too large")
            if not end:
                self._rest = bytearray(data)
                return []
            self._read_head(head)
            data = body
        if not data or self.whole:
            return []
        if self._chunked:
            return self._chunks(data)
        if self.ends_with_connection:
            return [data]
        piece = data[: self._left]
        self._left -= len(piece)
        self.whole = not self._left
        return [piece]

    def _read_head(self, head: bytes) -> None:
        """Interim responses (1xx) are skipped."""
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        status = rest[:3]
        if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit() and len(status) == 3):
            raise BadResponse("it does not begin with an HTTP status line")
        if 100 <= int(status) < 200:
            return
        self.status = int(status)
        named = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in named}
        length = self.headers.get("content-length")
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if self._chunked or status in ("204", "304"):
            self.whole = not self._chunked
        elif length is None:
            self.ends_with_connection = True
        elif length.isascii() and length.isdigit() and len(length) <= LENGTH_DIGITS_MAX:
            self._left = int(length)
            self.whole = not self._left
        else:
            raise BadResponse("its length is not a number")

    def _chunks(self, data: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        at = self._wanted = 0
        while (line_end := data.find(b"\r\n", at)) >= 0:
            size = _size(data[at:line_end])
            begin = line_end + 2
            if not size:
                self.whole = True  # only trailers may follow, which are ignored
                return pieces
            if len(data) < begin + size + 2:
                self._wanted = begin + size + 2 - at
                break
            pieces.append(data[begin : begin + size])
            at = begin + size + 2
        self._rest = bytearray(data[at:])
        if line_end < 0 and len(self._rest) > CHUNK_LINE_BYTES_MAX:
            raise BadResponse("a chunk without a length")
        return pieces


def _size(line: bytes) -> int:
    """The size of a chunk in bytes; chunk extensions are ignored. Raises BadResponse."""
    digits = line.partition(b";")[0].strip()
    try:
        size = int(digits, 16) if digits.isalnum() and len(line) <= CHUNK_LINE_BYTES_MAX else -1
    except ValueError:
        size = -1
    if not 0 <= size <= CHUNK_BYTES_MAX:
        raise BadResponse("a chunk with an invalid length")
    return size
