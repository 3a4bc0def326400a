"""Items of a conversation, in the vocabulary of the public contract."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from agents.call_shape import PLAIN, CallShape
from agents.function_tool import FunctionTool
from inference.generation import TokenLogprob

Role: TypeAlias = Literal["user", "assistant", "system", "developer"]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


def new_id(prefix: str) -> str:
    """An unguessable id such as "msg_3f…": 24 random bytes, so that ids of tenants never collide."""
    return f"{prefix}_{secrets.token_hex(24)}"


def storable(text: str) -> str:
    """The text without NUL and lone surrogates, which Postgres and JSON in UTF-8 cannot store."""
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
    logprobs: tuple[TokenLogprob, ...] = field(default=(), compare=False)  # sent once, never stored


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The reasoning of a model before its answer or its calls."""

    text: str
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("rs"))


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function of the caller or of a tool of the server. `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("fc"))
    shape: CallShape = PLAIN

    @property
    def runs(self) -> bool:
        """Whether it is complete, and its arguments are JSON."""
        return self.status == "completed"


@dataclass(frozen=True, slots=True)
class FunctionCallOutput:
    call_id: str
    output: str
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("fco"))
    shape: CallShape = PLAIN  # of its call
    tools: tuple[FunctionTool, ...] = ()  # that its text adds to the conversation


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
class Compaction:
    """A summary that replaces all earlier items except the newest turns, which are `recent`.

    Callers get both encrypted as `sealed`; the edge decrypts them.
    """

    sealed: str
    summary: str = ""
    recent: tuple[Item, ...] = ()
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("cmp"))


Item: TypeAlias = Message | Reasoning | FunctionCall | FunctionCallOutput | FileSearchCall | Compaction
