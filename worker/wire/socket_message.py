"""Messages on a WebSocket: what a client sends, and how it is told what was wrong with it.

Everything else that the worker sends is the events of a streamed response, one a message.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from worker.errors import ApiError
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import UNSUPPORTED, Unsupported, only


def _absent(value: Any) -> None:
    if value is not None:
        raise PydanticCustomError(UNSUPPORTED, "Over a WebSocket every response is streamed: leave it out.")


Absent: TypeAlias = Annotated[Any, AfterValidator(_absent)]


class CreateMessage(ResponseRequest):
    """The body of POST /v1/responses, without what says how it is to be answered."""

    type: Literal["response.create"]
    stream: Absent = None
    stream_options: Absent = None
    background: Absent = None
    generate: Annotated[bool | None, only(None, True)] = None
    stream_id: Unsupported = None

    @property
    def streamed(self) -> bool:
        return True


def error_event(error: ApiError) -> dict[str, Any]:
    return {"type": "error", "status": error.status, **error.body}
