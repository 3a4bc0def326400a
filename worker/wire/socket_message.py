"""Messages on a WebSocket: what a client sends, also by POST to a running response, and how errors are reported.

Everything else that the worker sends is the events of a streamed response, one per message.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, StringConstraints

from worker.errors import ApiError
from worker.wire import limits
from worker.wire.items import MessageItem, as_items
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import Id, Strict, only, up_to


class CreateMessage(ResponseRequest):
    """The body of POST /v1/responses; every response is streamed."""

    type: Literal["response.create"]
    stream: Annotated[bool | None, only(None, True)] = None
    background: Annotated[bool | None, only(None, False)] = None
    generate: bool | None = None
    stream_id: Annotated[str, StringConstraints(min_length=1, max_length=limits.KEY_CHARS_MAX)] | None = None

    @property
    def streamed(self) -> bool:
        return True

    @property
    def only_reads(self) -> bool:
        return self.generate is False or super().only_reads


class SaidMessage(MessageItem):
    role: Literal["user"]


class SteerRequest(Strict):
    """What somebody says to a response while it runs. `stop_tools`: without waiting for the tools that run."""

    input: Annotated[list[SaidMessage], up_to(limits.SAID_MAX, 1), BeforeValidator(as_items)]
    stop_tools: bool = False


class SteerMessage(SteerRequest):
    """Ours is only `stop_tools`."""

    type: Literal["response.steer"]
    previous_response_id: Id


def error_event(error: ApiError) -> dict[str, Any]:
    return {"type": "error", "status": error.status, **error.body}
