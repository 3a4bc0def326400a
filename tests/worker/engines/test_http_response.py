"""HTTP as engines, and what stands before them, answer it."""

from __future__ import annotations

import pytest

from worker.engines.http_response import CHUNK_BYTES_MAX, HEAD_BYTES_MAX, BadResponse, HttpResponseParser

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n7;x=1\r\n, world\r\n0\r\n\r\n"
LENGTH = b"HTTP/1.1 429 Too Many\r\nRetry-After: 2\r\nContent-Length: 4\r\n\r\nbusy"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [(CHUNKED, 200, b"hello, world"), (LENGTH, 429, b"busy"), (INTERIM + LENGTH, 429, b"busy")],
)
def test_an_answer_may_be_cut_anywhere(raw: bytes, status: int, body: bytes, size: int) -> None:
    answer, pieces = HttpResponseParser(), b""
    for start in range(0, len(raw), size):
        assert not answer.whole or raw[start:] in b"\r\n0\r\n\r\n"
        pieces += b"".join(answer.feed(raw[start : start + size]))
    assert (answer.status, pieces, answer.whole) == (status, body, True)


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    answer = HttpResponseParser()
    assert answer.feed(b"HTTP/1.0 200 OK\r\n\r\nhello") == [b"hello"]
    assert answer.feed(b" there") == [b" there"]
    assert (answer.whole, answer.ends_with_connection) == (False, True)


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-server\r\n\r\n",
        b"HTTP/1.1 twohundred\r\n\r\n",
        b"x" * (HEAD_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (CHUNK_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 300,
    ],
)
def test_what_is_no_http_or_has_no_bounds_is_refused(raw: bytes) -> None:
    with pytest.raises(BadResponse):
        HttpResponseParser().feed(raw)
