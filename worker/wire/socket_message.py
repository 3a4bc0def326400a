"""Messages on a WebSocket: what a client sends, and how errors are reported.

Everything else that the worker sends is the events of a streamed response, one per message.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from worker.errors import ApiError
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import Unsupported, only


class CreateMessage(ResponseRequest):
    """The body of POST /v1/responses; every response is streamed."""

    type: Literal["response.create"]
    stream: Annotated[bool | None, only(None, True)] = None
    background: Annotated[bool | None, only(None, False)] = None
    generate: bool | None = None
    stream_id: Unsupported = None

    @property
    def streamed(self) -> bool:
        return True

    @property
    def only_reads(self) -> bool:
        return self.generate is False or super().only_reads


def error_event(error: ApiError) -> dict[str, Any]:
    return {"type": "error", "status": error.status, **error.body}
