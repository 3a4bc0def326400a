"""The wire format of batches: the request that creates one, the lines of its input and output, and its object."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import orjson
from pydantic import AfterValidator, StringConstraints

from worker.errors import ApiError
from worker.wire.options import Metadata
from worker.wire.strict import Id, Strict, Unsupported, parse

PURPOSE, OUTPUT_PURPOSE = "batch", "batch_output"  # of input files, and of those that a batch writes
Endpoint: TypeAlias = Literal["/v1/responses", "/v1/chat/completions", "/v1/embeddings"]
Status: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
OVER: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})
Unanswered: TypeAlias = Literal["batch_expired", "batch_cancelled"]

CUSTOM_ID_CHARS_MAX = 512  # all ids of a batch are in memory at once, to find duplicates
WINDOW = re.compile(r"([1-9][0-9]{0,3})([mhd])")
WINDOW_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
WINDOW_MAX = timedelta(days=7)  # by then the models and the permissions may have changed


def _is_window(text: str) -> str:
    if (match := WINDOW.fullmatch(text)) is None or _span(match) > WINDOW_MAX:
        raise ValueError("use 24h, or another number of minutes (m), hours (h) or days (d), at most 7d")
    return text


def _span(match: re.Match[str]) -> timedelta:
    return int(match[1]) * WINDOW_UNITS[match[2]]


class BatchCreate(Strict):
    input_file_id: Id
    endpoint: Endpoint
    completion_window: Annotated[str, AfterValidator(_is_window)]
    metadata: Metadata | None = None
    output_expires_after: Unsupported = None

    @property
    def window(self) -> timedelta:
        match = WINDOW.fullmatch(self.completion_window)
        assert match is not None, "it was validated"
        return _span(match)


class LineError(NamedTuple):
    """What is wrong with a line of the input, or with the file where there is no line."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchLine(Strict):
    BULK: ClassVar = "body"

    custom_id: Annotated[str, StringConstraints(min_length=1, max_length=CUSTOM_ID_CHARS_MAX)]
    method: str
    url: str
    body: dict[str, Any]


def read_line(raw: bytes, endpoint: str) -> BatchLine | LineError:
    """A line of the input. Its body is only validated when it is answered."""
    try:
        line = parse(BatchLine, raw)
    except ApiError as error:
        code = "invalid_json_line" if error.code == "invalid_json" else error.code or "invalid_value"
        return LineError(code, error.message.replace("The body", "The line"), error.param)
    if line.method != "POST":
        return LineError("invalid_method", "Invalid 'method': it must be POST.", "method")
    if line.url != endpoint:
        return LineError("invalid_url", f"Invalid 'url': it must be {endpoint}, the endpoint of the batch.", "url")
    return line


class Tokens(NamedTuple):
    """The token usage of answers."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Tokens:
        """From an answer of any of the endpoints, whose formats differ."""
        usage = body.get("usage") or {}
        read, written = (usage.get(f"{name}_tokens_details") or {} for name in ("input", "output"))
        read = read or usage.get("prompt_tokens_details") or {}
        written = written or usage.get("completion_tokens_details") or {}
        return cls(
            usage.get("input_tokens") or usage.get("prompt_tokens") or 0,
            read.get("cached_tokens") or 0,
            usage.get("output_tokens") or usage.get("completion_tokens") or 0,
            written.get("reasoning_tokens") or 0,
        )


class Answer(NamedTuple):
    """A line of the output."""

    line: bytes
    succeeded: bool
    tokens: Tokens = Tokens()


def answered(id: str, custom_id: str, status: int, request_id: str, body: Mapping[str, Any]) -> Answer:
    """The endpoint's answer, including a rejection."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    line = {"id": id, "custom_id": custom_id, "response": response, "error": None}
    return Answer(orjson.dumps(line), status < 400, Tokens.of(body))


def unanswered(id: str, custom_id: str, code: str, message: str) -> Answer:
    """The request was not answered at all."""
    line = {"id": id, "custom_id": custom_id, "response": None, "error": {"code": code, "message": message}}
    return Answer(orjson.dumps(line), False)


WORDS: Mapping[Unanswered, str] = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "The batch was cancelled before this request was executed.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch as it is stored. `total` lines are known once its input has been checked."""

    id: str
    status: Status
    endpoint: Endpoint
    input_file_id: str
    output_file_id: str | None
    error_file_id: str | None
    completion_window: str
    metadata: Mapping[str, str] | None
    model: str | None
    errors: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    total: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    attempts: int
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    @property
    def unanswered(self) -> int:
        return self.total - self.completed - self.failed

    @property
    def end(self) -> Status:
        """The final state, now that no more lines are answered."""
        return "cancelled" if self.cancelling_at else "expired" if self.unanswered else "completed"


def batch_object(batch: Batch) -> dict[str, Any]:
    moments = {each.name: getattr(batch, each.name) for each in fields(Batch) if each.name.endswith("_at")}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": list(batch.errors)} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file_id if batch.is_over else None,
        "error_file_id": batch.error_file_id if batch.is_over else None,
        **{name: moment and int(moment.timestamp()) for name, moment in moments.items()},
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {
            "input_tokens": batch.input_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
            "total_tokens": batch.input_tokens + batch.output_tokens,
        },
        "metadata": batch.metadata,
    }
