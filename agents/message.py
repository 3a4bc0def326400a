"""Items of a conversation, in the vocabulary of the public contract."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Literal, NamedTuple, TypeAlias

from agents.function_tool import PLAIN, CallShape, FunctionTool
from inference.frozen import dataclass
from inference.generation import TokenLogprob
from inference.picture import Picture
from inference.prompt import PlacedPicture

Role: TypeAlias = Literal["user", "assistant", "system", "developer"]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


def new_id(prefix: str) -> str:
    """An unguessable id such as "msg_3f…": 24 random bytes, so that ids of tenants never collide."""
    return f"{prefix}_{secrets.token_hex(24)}"


def storable(text: str) -> str:
    """The text without NUL and lone surrogates, which Postgres and JSON in UTF-8 cannot store."""
    if text.isascii() and "\0" not in text:  # nearly always
        return text
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class Citation:
    """`[number]` at text[start_index:end_index] of an answer refers to a span of a source file."""

    number: int
    start_index: int
    end_index: int
    file_id: str
    filename: str
    title: str
    start_char: int
    end_char: int


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    text: str
    citations: tuple[Citation, ...] = ()
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("msg"))
    tools: tuple[FunctionTool, ...] = ()  # that its text adds to the conversation
    pictures: tuple[PlacedPicture, ...] = ()  # in its text
    logprobs: tuple[TokenLogprob, ...] = field(default=(), compare=False)  # sent once, never stored


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The reasoning of a model before its answer or its calls."""

    text: str
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("rs"))


class CallResult(NamedTuple):
    """What the model reads of a call."""

    output: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function of the caller or of a tool of the server. `arguments` is JSON text.

    Its result is an item of its own, except that of an MCP call. Such a call is named by its `id`, or, where the user
    had to approve it, by that of the request for approval. `joined`: written in the same step as the call before it.
    """

    call_id: str
    name: str
    arguments: str
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("fc"))
    shape: CallShape = PLAIN
    result: CallResult | None = None
    joined: bool = False

    @classmethod
    def begun(cls, name: str, shape: CallShape, *, joined: bool = False) -> FunctionCall:
        prefix = {"mcp": "mcp", "mcp_approval": "mcpr"}.get(shape.form)
        id = new_id(prefix or "fc")
        return cls(id if prefix else new_id("call"), name, "", "in_progress", id, shape, joined=joined)

    @property
    def runs(self) -> bool:
        """Whether it is complete, and its arguments are JSON."""
        return self.status == "completed"

    @property
    def is_pending(self) -> bool:
        """Whether it is an MCP call whose result will complete it: that is also told to a model that broke it."""
        return self.shape.form == "mcp" and self.result is None and self.status in ("completed", "failed")


@dataclass(frozen=True, slots=True)
class FunctionCallOutput:
    call_id: str
    output: str
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("fco"))
    shape: CallShape = PLAIN  # of its call
    tools: tuple[FunctionTool, ...] = ()  # that its text adds to the conversation
    pictures: tuple[PlacedPicture, ...] = ()

    @property
    def approves(self) -> bool:
        """Whether it allows a call to be run, in place of its result."""
        return self.shape.form == "mcp_approval" and self.status == "completed"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A passage that a search found: text[start_char:end_char] of the extracted text of a file."""

    file_id: str
    filename: str
    score: float
    text: str
    attributes: Mapping[str, Any] = field(default_factory=dict)  # of the file
    title: str = ""
    start_char: int = 0
    end_char: int = 0


@dataclass(frozen=True, slots=True)
class FileSearchCall:
    """Retrieval that the server did before the answer."""

    queries: tuple[str, ...] = ()
    results: tuple[SearchResult, ...] = ()
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("fs"))


@dataclass(frozen=True, slots=True)
class ToolListing:
    """The tools of an MCP server of the request, or the reason why they are not known."""

    label: str
    tools: tuple[Mapping[str, Any], ...] = ()  # as the public contract shows them
    error: str = ""
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("mcpl"))


@dataclass(frozen=True, slots=True)
class ConfigurationUpdate:
    """From here on, the effort and the format of answers are these, where they are set, whatever requests say."""

    effort: str | None = None
    format: Mapping[str, Any] | None = None  # as the public contract has it
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("cu"))


@dataclass(frozen=True, slots=True)
class Compaction:
    """A summary that replaces all earlier items except the newest turns, which are `recent`.

    Callers get both encrypted as `sealed`; the edge decrypts them.
    """

    sealed: str
    summary: str = ""
    recent: tuple[Item, ...] = ()
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("cmp"))


_Read: TypeAlias = Message | Reasoning | FunctionCall | FunctionCallOutput | Compaction
Item: TypeAlias = _Read | FileSearchCall | ToolListing | ConfigurationUpdate  # of the others the model reads nothing


def answered_calls(items: Iterable[Item]) -> frozenset[str]:
    """The call_ids of the calls whose results are among the items."""
    return frozenset(
        item.call_id
        for item in items
        if isinstance(item, FunctionCallOutput) or (isinstance(item, FunctionCall) and item.result is not None)
    )


def pictures_in(items: Iterable[Item]) -> Iterator[Picture]:
    for item in items:
        if isinstance(item, Message | FunctionCallOutput):
            yield from (placed.picture for placed in item.pictures)
