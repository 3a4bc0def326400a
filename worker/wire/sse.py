"""Server-sent events as bytes. Pure: the stream decides when to write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # proxies must not buffer events
}
PING = b": ping\n\n"  # a comment: clients drop it, proxies see traffic
DONE = b"data: [DONE]\n\n"


def encode(event: Mapping[str, Any]) -> bytes:
    """A named event: the name equals its `type`. One line of data, as JSON holds no raw line breaks."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


HOLE = "\ue000"  # the placeholder for the text in a template's event; nothing else there uses the private use area


class Template:
    """An event in which only the text, and possibly the number, differs from one token to the next: the rest is encoded
    once."""

    __slots__ = ("_after", "_before")

    def __init__(self, frame: bytes) -> None:
        """`frame` is an encoded event whose text is HOLE."""
        self._before, self._after = frame.split(orjson.dumps(HOLE))

    def filled(self, text: str) -> bytes:
        return b"%b%b%b" % (self._before, orjson.dumps(text), self._after)

    def numbered(self, text: str, number: int) -> bytes:
        """With the last key `sequence_number`, for a frame that was encoded without it."""
        return b'%b%b%b,"sequence_number":%d}\n\n' % (self._before, orjson.dumps(text), self._after[:-3], number)


def data_of(frame: bytes) -> bytes:
    """The JSON of an event that `encode` made."""
    return frame[frame.index(b"\ndata: ") + 7 : -2]


def encode_data(chunk: Mapping[str, Any]) -> bytes:
    """An unnamed event, as in chat completions."""
    return b"data: %b\n\n" % orjson.dumps(chunk)
