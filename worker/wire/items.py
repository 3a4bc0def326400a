"""Items as callers send them: messages, function calls and their outputs, and what earlier answers contained."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, StringConstraints, Tag

from agents.message import Compaction, FileSearchCall, FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from worker.wire import limits
from worker.wire.parts import Content, joined
from worker.wire.strict import UNSUPPORTED, Id, Ignored, Strict, Text, Unsupported

Name: TypeAlias = Annotated[str, StringConstraints(pattern=limits.NAME_PATTERN)]
CallId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Arguments: TypeAlias = Annotated[str, StringConstraints(max_length=limits.ARGUMENTS_CHARS_MAX)]
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"] | None


class MessageItem(Strict):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: Id | None = None
    status: ItemStatus = None
    phase: Literal["commentary", "final_answer"] | None = None

    def item(self) -> Item:
        return Message(self.role, joined(self.content, "" if self.role == "assistant" else "\n"))


class ReasoningPart(Strict):
    type: Literal["reasoning_text"]
    text: Text


class ReasoningItem(Strict):
    """Thoughts of an earlier answer. Summaries and sealed thoughts are those of other servers and are not read."""

    type: Literal["reasoning"]
    id: Id | None = None
    summary: Ignored = None
    content: Annotated[list[ReasoningPart], Field(max_length=limits.PARTS_MAX)] | None = None
    encrypted_content: Ignored = None
    status: ItemStatus = None

    def item(self) -> Item:
        return Reasoning("\n".join(part.text for part in self.content or ()))


class FunctionCallItem(Strict):
    type: Literal["function_call"]
    call_id: CallId
    name: Name
    arguments: Arguments
    id: Id | None = None
    status: ItemStatus = None
    parsed_arguments: Ignored = None
    caller: Unsupported = None
    namespace: Unsupported = None

    def item(self) -> Item:
        return FunctionCall(self.call_id, self.name, self.arguments)


class FunctionCallOutputItem(Strict):
    type: Literal["function_call_output"]
    call_id: CallId
    output: Content
    id: Id | None = None
    status: ItemStatus = None
    name: Name | None = None
    caller: Unsupported = None
    namespace: Unsupported = None

    def item(self) -> Item:
        return FunctionCallOutput(self.call_id, joined(self.output, "\n"))


class FileSearchCallItem(Strict):
    """A search of an earlier answer. Its results were that answer's own and are not read again."""

    type: Literal["file_search_call"]
    id: Id | None = None
    queries: Annotated[list[Text], Field(max_length=limits.PARTS_MAX)] = Field(default_factory=list)
    results: Ignored = None
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"] | None = None

    def item(self) -> Item:
        return FileSearchCall(tuple(self.queries))


class CompactionItem(Strict):
    """A summary that this server made and sealed for the caller's tenant."""

    type: Literal["compaction"]
    encrypted_content: Annotated[str, StringConstraints(min_length=1, max_length=limits.SEALED_CHARS_MAX)]
    id: Id | None = None
    status: ItemStatus = None
    created_by: Ignored = None

    def item(self) -> Item:
        return Compaction(self.encrypted_content)


KINDS = frozenset({"message", "reasoning", "function_call", "function_call_output", "file_search_call", "compaction"})


def _item_kind(item: Any) -> str | None:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)
    return kind if isinstance(kind, str) and kind in KINDS else None


InputItem: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[FileSearchCallItem, Tag("file_search_call")]
    | Annotated[CompactionItem, Tag("compaction")],
    Discriminator(
        _item_kind,
        custom_error_type=UNSUPPORTED,
        custom_error_message=f"An item must have one of the types {', '.join(sorted(KINDS))}.",
    ),
]


def as_items(value: Any) -> Any:
    """A bare string is one message of the user."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value
