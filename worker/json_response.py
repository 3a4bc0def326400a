"""JSON responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web


def json_response(content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON response; UUIDs and times are serialized as text."""
    return web.Response(status=status, body=orjson.dumps(content), content_type="application/json", headers=headers)
