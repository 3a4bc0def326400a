"""JSON answers."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web


def reply(content: Any, *, status: int = 200) -> web.Response:
    """A JSON response; UUIDs and times are written as text."""
    return web.Response(status=status, body=orjson.dumps(content), content_type="application/json")
