"""Items: what a conversation is made of, in the vocabulary of the public contract."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from inference.core import TokenLogprob

Role: TypeAlias = Literal["user", "assistant", "system", "developer"]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


def new_id(prefix: str) -> str:
    """An unguessable id such as "msg_3f…": 24 random bytes, so that ids of tenants never meet."""
    return f"{prefix}_{secrets.token_hex(24)}"


def storable(text: str) -> str:
    """The text without what neither Postgres nor JSON in UTF-8 can hold: NUL and lone surrogates."""
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
    logprobs: tuple[TokenLogprob, ...] = field(default=(), compare=False)  # told once, never read again


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model said to itself before its answer or its calls."""

    text: str
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("rs"))


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of the caller's or of a server-side tool. `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("fc"))


@dataclass(frozen=True, slots=True)
class FunctionCallOutput:
    call_id: str
    output: str
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("fco"))


@dataclass(frozen=True, slots=True)
class FileSearchCall:
    """Retrieval that the platform did before the answer. `results` are public search results."""

    queries: tuple[str, ...] = ()
    results: tuple[dict[str, Any], ...] = ()
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("fs"))


@dataclass(frozen=True, slots=True)
class Compaction:
    """A summary in the place of all that was said before it, but for the newest turns, which are `recent`.

    Callers carry both `sealed`; opening them is the edge's affair.
    """

    sealed: str
    summary: str = ""
    recent: tuple[Item, ...] = ()
    status: Status = "completed"
    id: str = field(default_factory=lambda: new_id("cmp"))


Item: TypeAlias = Message | Reasoning | FunctionCall | FunctionCallOutput | FileSearchCall | Compaction
