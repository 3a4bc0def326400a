"""Items of a conversation, in the vocabulary of the public contract."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from os import urandom
from typing import Any, Literal, NamedTuple, TypeAlias

from agents.function_tool import INPUT, PLAIN, CallShape, FunctionTool
from inference.frozen import dataclass
from inference.generation import TokenLogprob
from inference.picture import Picture
from inference.prompt import PlacedPicture
from retrieval.passage import Passage

Role: TypeAlias = Literal["user", "assistant", "system", "developer"]
Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


def new_id(prefix: str) -> str:
    """An unguessable id such as "msg_3f…": 24 random bytes, so that ids of tenants never collide."""
    return f"{prefix}_{urandom(24).hex()}"


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
class FileSearchCall:
    """Retrieval that the server did before the answer."""

    queries: tuple[str, ...] = ()
    results: tuple[Passage, ...] = ()
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


def with_calls(items: Iterable[Item]) -> Iterator[Item]:
    """Without the results of calls that are not there: stored items may be deleted one by one."""
    known = set[str]()
    for item in items:
        if isinstance(item, FunctionCall):
            known.add(item.call_id)
        if not isinstance(item, FunctionCallOutput) or item.call_id in known:
            yield item


def pictures_in(items: Iterable[Item]) -> Iterator[Picture]:
    for item in items:
        if isinstance(item, Message | FunctionCallOutput):
            yield from (placed.picture for placed in item.pictures)


# Citations are the `[n]` of an answer, each with the span of a source that it cites.
CITATIONS_MAX = 100  # of one answer: a model that repeats "[1]" must not fill the response

CITATION = re.compile(r"\[(\d{1,3})\](?!\()")  # followed by "(", it is a link
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)  # in code, [1] is an index


def find_citations(text: str, sources: Sequence[Passage]) -> tuple[Citation, ...]:
    """Citations in order; `sources[i]` is cited as `[i + 1]`. Numbers without a source are left out."""
    if not sources:
        return ()
    found = [
        _citation(number, mark.span(), sources[number - 1])
        for number, mark in _marks(text)
        if 1 <= number <= len(sources)
    ]
    return tuple(found[:CITATIONS_MAX])


def count_unknown(text: str, sources: Sequence[Passage]) -> int:
    """The number of citations without a source; without any source, a number in brackets is not a citation."""
    return sum(not 1 <= number <= len(sources) for number, _ in _marks(text)) if sources else 0


def _marks(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    code = [match.span() for match in _CODE.finditer(text)]
    for mark in CITATION.finditer(text):
        if not any(start <= mark.start() < end for start, end in code):
            yield int(mark[1]), mark


def _citation(number: int, span: tuple[int, int], source: Passage) -> Citation:
    return Citation(
        number=number,
        start_index=span[0],
        end_index=span[1],
        file_id=source.file_id,
        filename=source.filename,
        title=source.title,
        start_char=source.start_char,
        end_char=source.end_char,
    )


# The input of a custom tool, whose call is JSON: `{"input": "..."}`.
_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
HEAD_CHARS_MAX = 100  # more white space than any model writes; the input then comes in one piece, at the end
# Whole characters and escapes: one half of a surrogate pair waits for the other.
_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*'
)


class InputText:
    """Decodes the value in `{"input": "..."}`."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._unread = ""
        self._begun = False
        self._over = False

    def feed(self, piece: str) -> str:
        """The text that this piece of JSON completes."""
        if self._over:
            return ""
        self._unread += piece
        if not self._begun and not self._begin():
            return ""
        whole = _WHOLE.match(self._unread)
        length = whole.end() if whole else 0
        text = storable(json.loads(f'"{self._unread[:length]}"', strict=False))
        self._unread = self._unread[length:]
        self._over = self._unread.startswith('"')
        self.sent.append(text)
        return text

    def rest(self, whole: str) -> str:
        """What of the whole input was not sent: a part that was no such JSON, or ended within a character."""
        sent = "".join(self.sent)
        return whole[len(sent) :] if whole.startswith(sent) else ""

    def _begin(self) -> bool:
        head = _HEAD.match(self._unread)
        if head:
            self._unread, self._begun = self._unread[head.end() :], True
        self._over = head is None and len(self._unread) > HEAD_CHARS_MAX
        return self._begun
