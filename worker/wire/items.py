"""Items as clients send them: messages, function calls and their outputs, and what earlier answers contained."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from agents.call_payload import CALLS, OUTPUTS
from agents.call_shape import CallShape, qualified
from agents.message import Compaction, FileSearchCall, FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from agents.payload import ADDITIONAL_TOOLS, LISTING, UPDATE
from worker.wire import limits
from worker.wire.call_items import CallItem
from worker.wire.images import check_role
from worker.wire.mcp import McpItem
from worker.wire.parts import Content, shown
from worker.wire.strict import UNSUPPORTED, CallId, Echoed, Id, ItemStatus, Name, Strict, Text, Unsupported, up_to

Arguments: TypeAlias = Annotated[str, StringConstraints(max_length=limits.ARGUMENTS_CHARS_MAX)]


class MessageItem(Strict):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: Id | None = None
    status: ItemStatus = None
    phase: Literal["commentary", "final_answer"] | None = None

    @model_validator(mode="after")
    def _shows_what_it_may(self) -> MessageItem:
        check_role(self.role, self.content)
        return self

    def item(self) -> Item:
        text, pictures = shown(self.content, "" if self.role == "assistant" else "\n")
        return Message(self.role, text, pictures=pictures)


class AnswerItem(MessageItem, Echoed):
    """A message from an earlier answer."""

    role: Literal["assistant"]


class ReasoningPart(Echoed):
    type: Literal["reasoning_text"]
    text: Text


class ReasoningItem(Echoed):
    """Reasoning from an earlier answer. Summaries and encrypted reasoning of other servers are ignored."""

    type: Literal["reasoning"]
    id: Id | None = None
    content: Annotated[list[ReasoningPart], up_to(limits.PARTS_MAX)] | None = None
    status: ItemStatus = None

    def item(self) -> Item:
        return Reasoning("\n".join(part.text for part in self.content or ()))


class FunctionCallItem(Echoed):
    type: Literal["function_call"]
    call_id: CallId
    name: Name
    arguments: Arguments
    id: Id | None = None
    status: ItemStatus = None
    caller: Unsupported = None
    namespace: Name | None = None

    def item(self) -> Item:
        namespace = self.namespace or ""
        shape = CallShape(namespace=namespace)
        return FunctionCall(self.call_id, qualified(namespace, self.name), self.arguments, shape=shape)


class FunctionCallOutputItem(Strict):
    """The output of a function or of a custom tool."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: Content
    id: Id | None = None
    status: ItemStatus = None
    name: Name | None = None
    caller: Unsupported = None
    namespace: Name | None = None

    def item(self) -> Item:
        shape = CallShape(OUTPUTS[self.type])
        text, pictures = shown(self.output)
        return FunctionCallOutput(self.call_id, text, shape=shape, pictures=pictures)


class FileSearchCallItem(Echoed):
    """A file search from an earlier answer. Its results are not used again."""

    type: Literal["file_search_call"]
    id: Id | None = None
    queries: Annotated[list[Text], up_to(limits.PARTS_MAX)] = Field(default_factory=list)
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"] | None = None

    def item(self) -> Item:
        return FileSearchCall(tuple(self.queries))


class CompactionItem(Echoed):
    """A summary that this server created and sealed for the caller's tenant."""

    type: Literal["compaction"]
    encrypted_content: Annotated[str, StringConstraints(min_length=1, max_length=limits.SEALED_CHARS_MAX)]
    id: Id | None = None
    status: ItemStatus = None

    def item(self) -> Item:
        return Compaction(self.encrypted_content)


class ItemReference(Strict):
    """A reference to an item that is stored in a conversation or in the output of a response."""

    type: Literal["item_reference"]
    id: Id


KINDS = frozenset(
    {"message", "reasoning", "file_search_call", "compaction", "item_reference", ADDITIONAL_TOOLS, LISTING, UPDATE}
    | {*CALLS, *OUTPUTS}
)
# The kinds whose models have no other tag.
CALL_KINDS = KINDS & {*CALLS, *OUTPUTS, ADDITIONAL_TOOLS, LISTING, UPDATE} - {"function_call", "function_call_output"}


def _item_kind(item: Any) -> str | None:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)
    if kind == "message" and _role(item) == "assistant":
        return "answer"
    if kind == "custom_tool_call_output":
        return "function_call_output"
    if kind in CALL_KINDS:
        return "call"
    return kind if isinstance(kind, str) and kind in KINDS else None


def _role(item: Any) -> Any:
    return item.get("role") if isinstance(item, dict) else getattr(item, "role", None)


InputItem: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[AnswerItem, Tag("answer")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[FileSearchCallItem, Tag("file_search_call")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[ItemReference, Tag("item_reference")]
    | Annotated[CallItem | McpItem, Discriminator("type"), Tag("call")],
    Discriminator(
        _item_kind,
        custom_error_type=UNSUPPORTED,
        custom_error_message=f"An item must have one of the types {', '.join(sorted(KINDS))}.",
    ),
]


def as_items(value: Any) -> Any:
    """A bare string is one user message."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value
