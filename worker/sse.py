"""Server-sent events as bytes. Pure: the stream decides when to write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # proxies pass events on as they come
}
PING = b": ping\n\n"  # a comment: clients drop it, proxies see life
DONE = b"data: [DONE]\n\n"


def encode(event: Mapping[str, Any]) -> bytes:
    """A named event: the name equals its `type`. One line of data, as JSON holds no raw line breaks."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


def data_of(frame: bytes) -> bytes:
    """The JSON of an event that `encode` made."""
    return frame.partition(b"\ndata: ")[2].rstrip()


def encode_data(chunk: Mapping[str, Any]) -> bytes:
    """An unnamed event, as chat completions send."""
    return b"data: %b\n\n" % orjson.dumps(chunk)
