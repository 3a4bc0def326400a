"""Messages of Anthropic's Messages API: content blocks, which are converted to items."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from agents.function_tool import Addition
from agents.message import Compaction, FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from agents.prompt import since_compaction
from worker.wire import limits
from worker.wire.messages_tools import (
    ERROR,
    SERVER_RESULT,
    McpListingBlock,
    ServerToolResultBlock,
    ServerToolUseBlock,
    ToolAdditionBlock,
    ToolChanges,
    ToolReferenceBlock,
    ToolRemovalBlock,
)
from worker.wire.parts import FilePart, ImagePart, as_input_image, as_parts, check_role, shown, tag_of
from worker.wire.strict import Cached, CallId, Echoed, Lenient, Name, Tagged, Text, key_of, note, up_to

# A line for Anthropic's accounting that a coding agent puts in front of its system prompt. It means nothing to a model,
# and it differs from request to request: with it, no prompt would be found in the cache.
BILLING = "x-anthropic-billing-header"
ONLY_USERS = "A block must have the type text, image, document, search_result or tool_result, as in the API reference."
ONLY_SAID = "A block of the assistant must have the type text, thinking, tool_use, or one of a hosted tool."
ONLY_RESULTS = "A block of a result must have the type text, image or tool_reference."


class TextBlock(Cached):
    type: Literal["text"] = "text"
    text: Text
    citations: Any = None  # of an earlier answer


def _as_parts(content: Any, info: ValidationInfo) -> Any:
    """A text is one block. From here on, documents have the form of the other surfaces, and are read in the same
    way."""
    return [_as_part(block, info) for block in as_parts(content)]


def _as_part(block: Any, info: ValidationInfo) -> Any:
    match block:
        case {"type": "image"}:
            if block.get("cache_control") is not None:
                note(info, "cache_control")
            return as_input_image({key: value for key, value in block.items() if key != "cache_control"})
        case {"type": "document" | "search_result" as kind}:
            rest: dict[str, Any] = {key: value for key, value in block.items() if key != "type"}
            if rest.pop("cache_control", None) is not None:
                note(info, "cache_control")
            if rest.pop("citations", None) is not None:
                note(info, "citations")
            return {"document": _document, "search_result": _search_result}[kind](rest) or block
    return block


def _document(block: dict[str, Any]) -> dict[str, Any] | None:
    """`context` is left to the model of a file, which rejects it: it has no place for it."""
    title = block.pop("title", None) or "document"
    match block.pop("source", None):
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            file = {"filename": title, "file_data": f"data:{media_type};base64,{data}"}
            return {"type": "input_file", **file, **block}
        case {"type": "file", "file_id": file_id}:
            return {"type": "input_file", "file_id": file_id, **block}
        case {"type": "url", "url": url}:
            return {"type": "input_file", "file_url": url, **block}
        case {"type": "text", "data": str(text)} | {"type": "content", "content": str(text)}:
            return _quoted(title, block, [text])
        case {"type": "content", "content": [*parts]} if (texts := _texts(parts)) is not None:
            return _quoted(title, block, texts)
    return None


def _quoted(title: str, block: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """A document whose text is in the request, as stored files are shown."""
    told = [f"File {title}:", block.get("context"), *texts]
    return {"type": "text", "text": "\n".join(line for line in told if isinstance(line, str))}


def _texts(parts: Sequence[Any]) -> list[str] | None:
    """None if one of them is no text."""
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    return [text for text in texts if isinstance(text, str)] if all(isinstance(text, str) for text in texts) else None


def _search_result(block: Mapping[str, Any]) -> dict[str, Any] | None:
    match block:
        case {"title": str(title), "source": str(source), "content": [*parts]} if (texts := _texts(parts)) is not None:
            return {"type": "text", "text": "\n".join([f"{title} ({source}):", *texts])}
    return None


def _tag_of(block: Any) -> Any:
    kind = key_of(block, "type", "text")
    return SERVER_RESULT if isinstance(kind, str) and kind.endswith(SERVER_RESULT) else tag_of(block) or kind


_SEVERAL = (up_to(limits.PARTS_MAX), BeforeValidator(_as_parts))
ResultContent: TypeAlias = Annotated[
    list[Annotated[TextBlock | ImagePart | ToolReferenceBlock, Tagged(ONLY_RESULTS, _tag_of)]], *_SEVERAL
]


class ToolResultBlock(Cached):
    """The result of a function that the caller ran."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: ResultContent = Field(default_factory=list)
    is_error: bool | None = None

    def item(self, changes: ToolChanges) -> Item:
        text, pictures = shown([part for part in self.content if not isinstance(part, ToolReferenceBlock)])
        if self.is_error and not text.startswith(ERROR):
            text, pictures = f"{ERROR}: {text}", tuple(placed.behind(len(f"{ERROR}: ")) for placed in pictures)
        names = [part.tool_name for part in self.content if isinstance(part, ToolReferenceBlock)]
        if not names:
            return FunctionCallOutput(self.tool_use_id, text, pictures=pictures)
        added = changes.referred(names)
        told = "\n".join(filter(None, (text, added.text)))
        return FunctionCallOutput(self.tool_use_id, told, tools=added.tools, pictures=pictures)


class ThinkingBlock(Echoed):
    type: Literal["thinking"]
    thinking: Text


class UnreadBlock(Echoed):
    """What only its own server can read: encrypted reasoning, a file in a container, a change of models."""

    type: Literal["redacted_thinking", "container_upload", "fallback"]


class CompactionBlock(Echoed):
    """A summary in place of what precedes it; null: there is none."""

    type: Literal["compaction"]
    content: Text | None = None
    tool_changes: Annotated[list[ToolAdditionBlock | ToolRemovalBlock] | None, up_to(limits.PARTS_MAX)] = None

    def items(self, changes: ToolChanges) -> list[Item]:
        if self.content is None:
            return []
        made = [changes.made(change) for change in self.tool_changes or ()]
        added = [Message("system", each.text, tools=tuple(each.tools)) for each in made]
        return [Compaction("", self.content), *added]


class ToolUseBlock(Echoed):
    type: Literal["tool_use"]
    id: CallId
    name: Name
    input: dict[str, Any]

    def item(self) -> Item:
        # Serialised as models write it, so that the tokens of a generated call are found again.
        return FunctionCall(self.id, self.name, json.dumps(self.input, ensure_ascii=False))


GivenContent: TypeAlias = Annotated[
    list[
        Annotated[
            TextBlock | FilePart | ImagePart | ToolResultBlock | ToolAdditionBlock | ToolRemovalBlock,
            Tagged(ONLY_USERS, _tag_of),
        ]
    ],
    *_SEVERAL,
]
_Said: TypeAlias = (
    TextBlock
    | ThinkingBlock
    | UnreadBlock
    | CompactionBlock
    | McpListingBlock
    | ToolUseBlock
    | ServerToolUseBlock
    | ServerToolResultBlock
)
SaidContent: TypeAlias = Annotated[list[Annotated[_Said, Tagged(ONLY_SAID, _tag_of)]], *_SEVERAL]
SystemContent: TypeAlias = Annotated[list[TextBlock], *_SEVERAL]


def said(parts: Sequence[Any], between: str = "\n") -> str:
    return between.join(part.text for part in parts)


class GivenMessage(Lenient):
    """A message from the user, with the results of earlier tool calls; or a system message in between."""

    TAG: ClassVar = "given"

    role: Literal["user", "system"]
    content: GivenContent

    @model_validator(mode="after")
    def _shows_what_it_may(self) -> GivenMessage:
        check_role(self.role, self.content)
        return self

    def items(self, changes: ToolChanges) -> list[Item]:
        items: list[Item] = []
        spoken: list[Any] = []
        for block in self.content:
            if isinstance(block, ToolResultBlock):
                items += self._spoken(spoken)
                items.append(block.item(changes))
                spoken = []
            elif isinstance(block, ToolAdditionBlock | ToolRemovalBlock):
                spoken.append(changes.made(block))
            else:
                spoken.append(block)
        return items + self._spoken(spoken)

    def _spoken(self, parts: Sequence[Any]) -> list[Item]:
        tools = tuple(tool for part in parts if isinstance(part, Addition) for tool in part.tools)
        text, pictures = shown(parts)
        return [Message(self.role, text, tools=tools, pictures=pictures)] if parts else []


class SaidMessage(Lenient):
    """An earlier answer of the model."""

    TAG: ClassVar = "said"

    role: Literal["assistant"]
    content: SaidContent

    def items(self, changes: ToolChanges) -> list[Item]:
        return [item for block in self.content for item in _items(block, changes)]


def _items(block: _Said, changes: ToolChanges) -> list[Item]:
    match block:
        case TextBlock():
            return [Message("assistant", block.text)] if block.text else []
        case ThinkingBlock():
            return [Reasoning(block.thinking)]
        case ToolUseBlock() | ServerToolUseBlock() | McpListingBlock():
            return [block.item()]
        case ServerToolResultBlock():
            return [block.item(changes)]
        case CompactionBlock():
            return block.items(changes)
    return []


def _speaker(message: Any) -> Any:
    role = key_of(message, "role")
    return SaidMessage.TAG if role == "assistant" else GivenMessage.TAG if role in ("user", "system") else None


MessageParam: TypeAlias = Annotated[
    GivenMessage | SaidMessage,
    Tagged("A message must be an object with the role user or assistant.", _speaker, "invalid_role"),
]


def items_of(messages: Sequence[GivenMessage | SaidMessage], changes: ToolChanges) -> tuple[Item, ...]:
    """Consecutive messages or blocks of one role become one message: many chat templates require alternating roles."""
    items: list[Item] = []
    for item in (item for message in messages for item in message.items(changes)):
        last = items[-1] if items else None
        if isinstance(item, Message) and isinstance(last, Message) and item.role == last.role != "system":
            before = f"{last.text}{_BETWEEN[item.role]}"
            pictures = last.pictures + tuple(placed.behind(len(before)) for placed in item.pictures)
            items[-1] = Message(item.role, before + item.text, tools=last.tools + item.tools, pictures=pictures)
        else:
            items.append(item)
    return since_compaction(items)


_BETWEEN: Mapping[str, str] = {"user": "\n", "assistant": ""}
