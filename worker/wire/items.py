"""Items as clients send them: messages, function calls and their outputs, and what earlier answers contained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Discriminator, Field, StringConstraints, model_validator

from agents.function_tool import CallShape, FunctionTool, described
from agents.message import (
    ConfigurationUpdate,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Status,
    new_id,
)
from agents.payload import ADDITIONAL_TOOLS, CALLS, LISTING, OUTPUTS, UPDATE, hosted_call, parsed, written
from inference.prompt import Effort
from worker.wire import limits
from worker.wire.function_tools import CustomTool, FunctionToolParam, NamespaceTool
from worker.wire.mcp import McpItem, StoredItem
from worker.wire.options import TextFormat
from worker.wire.parts import Content, check_role, shown
from worker.wire.strict import (
    Caller,
    CallId,
    Echoed,
    Id,
    ItemStatus,
    Name,
    Strict,
    Tagged,
    Text,
    key_of,
    short_for,
    up_to,
    without_effect,
)

# Searches that their server ran have no call_id: each output belongs to the call before it.
SERVER_CALL = "tool_search"
Execution: TypeAlias = Literal["server", "client"] | None
ToolDefinition: TypeAlias = Annotated[FunctionToolParam | CustomTool | NamespaceTool, Discriminator("type")]
Definitions: TypeAlias = Annotated[list[ToolDefinition], up_to(limits.TOOLS_MAX)]
Words: TypeAlias = Annotated[list[Text], up_to(limits.PARTS_MAX)]
Arguments: TypeAlias = Annotated[str, StringConstraints(max_length=limits.ARGUMENTS_CHARS_MAX)]
# What Codex notes for OpenAI's own servers, where it takes this one for theirs.
Passthrough: TypeAlias = Annotated[Any, without_effect("internal_chat_message_metadata_passthrough")]


def _functions(tools: Sequence[FunctionToolParam | CustomTool | NamespaceTool]) -> tuple[FunctionTool, ...]:
    return tuple(replace(function, deferred=True) for tool in tools for function in tool.functions)


class _Item(StoredItem):
    id: Id | None = None
    status: ItemStatus = None


class _Call(_Item):
    call_id: CallId


class CustomToolCallItem(_Call):
    type: Literal["custom_tool_call"]
    name: Name
    input: Annotated[str, StringConstraints(max_length=limits.ARGUMENTS_CHARS_MAX)]
    namespace: Name | None = None


class ToolSearchCallItem(_Item):
    type: Literal["tool_search_call"]
    arguments: Any = None
    execution: Execution = None
    call_id: CallId | None = None

    def item(self) -> Item:
        asked = parsed(self.arguments) if isinstance(self.arguments, str) else self.arguments
        shape = CallShape("tool_search", by_server=self.execution == "server")
        return FunctionCall(self.call_id or SERVER_CALL, "tool_search", written(asked or {}), shape=shape)


class ToolSearchOutputItem(_Item):
    """From here on, the model may call these tools."""

    type: Literal["tool_search_output"]
    tools: Definitions
    execution: Execution = None
    call_id: CallId | None = None

    def item(self) -> Item:
        tools = _functions(self.tools)
        shape = CallShape("tool_search", by_server=self.execution == "server")
        return FunctionCallOutput(self.call_id or SERVER_CALL, described(tools), shape=shape, tools=tools)


class AdditionalToolsItem(Strict):
    """From here on, the model may call these tools."""

    type: Literal["additional_tools"]
    role: Literal["developer"]
    tools: Definitions
    id: Id | None = None

    def item(self) -> Item:
        tools = _functions(self.tools)
        return Message(self.role, described(tools), tools=tools)


class UpdatedReasoning(Strict):
    effort: Effort | None = None


class UpdatedText(Strict):
    format: TextFormat


class ConfigurationUpdateItem(Strict):
    """From here on, answers have this effort and format."""

    type: Literal["configuration_update"]
    reasoning: UpdatedReasoning | None = None
    text: UpdatedText | None = None
    id: Id | None = None

    def item(self) -> Item:
        effort = self.reasoning.effort if self.reasoning else None
        return ConfigurationUpdate(effort, self.text.format.echo() if self.text else None)


class LocalShellAction(Echoed):
    type: Literal["exec"]
    command: Words
    env: dict[str, Text] = Field(default_factory=dict)
    timeout_ms: int | None = None
    user: Text | None = None
    working_directory: Text | None = None


class LocalShellCallItem(_Call):
    type: Literal["local_shell_call"]
    action: LocalShellAction


class ShellAction(Echoed):
    commands: Words
    timeout_ms: int | None = None
    max_output_length: int | None = None


class ShellCallItem(_Call):
    type: Literal["shell_call"]
    action: ShellAction


class PatchOperation(Echoed):
    type: Literal["create_file", "update_file", "delete_file"]
    path: Text
    diff: Text | None = None


class ApplyPatchCallItem(_Call):
    type: Literal["apply_patch_call"]
    operation: PatchOperation


class LocalShellCallOutputItem(Echoed):
    """`id` is that of the call, in the contract; clients also send it as `call_id`."""

    type: Literal["local_shell_call_output"]
    output: Text
    call_id: CallId | None = None
    id: CallId | None = None
    status: ItemStatus = None

    @model_validator(mode="after")
    def _names_its_call(self) -> LocalShellCallOutputItem:
        if self.call_id is None and self.id is None:
            raise ValueError("an output needs the call_id of its call")
        return self

    def item(self) -> Item:
        return FunctionCallOutput(self.call_id or self.id or "", self.output, shape=CallShape("local_shell"))


class Outcome(Echoed):
    type: Literal["exit", "timeout"]
    exit_code: int | None = None


class ShellOutput(Echoed):
    stdout: Text
    stderr: Text
    outcome: Outcome


class ShellCallOutputItem(_Call):
    PREFIX: ClassVar = "fco"

    type: Literal["shell_call_output"]
    output: Annotated[list[ShellOutput], up_to(limits.PARTS_MAX)]


class ApplyPatchCallOutputItem(_Call):
    type: Literal["apply_patch_call_output"]
    output: Text | None = None

    def item(self) -> Item:
        told = self.output or ("The patch was applied." if self.status != "failed" else "The patch was not applied.")
        if self.status == "failed" and not told.startswith("Error"):
            told = f"Error: {told}"
        status: Status = "failed" if self.status == "failed" else "completed"
        return FunctionCallOutput(self.call_id, told, status=status, shape=CallShape("apply_patch"))


class HostedCallItem(Echoed):
    """A call that another server ran in an earlier answer, with its result."""

    type: Literal["web_search_call", "code_interpreter_call", "image_generation_call"]
    action: Any = None
    code: Text | None = None
    container_id: Text | None = None
    outputs: Any = None
    revised_prompt: Text | None = None
    id: CallId | None = None
    status: Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,32}$")] | None = None

    def item(self) -> Item:
        return hosted_call({**self.model_dump(), "id": new_id(self.type.partition("_")[0])})


CallItem: TypeAlias = (
    CustomToolCallItem
    | ToolSearchCallItem
    | ToolSearchOutputItem
    | AdditionalToolsItem
    | ConfigurationUpdateItem
    | LocalShellCallItem
    | LocalShellCallOutputItem
    | ShellCallItem
    | ShellCallOutputItem
    | ApplyPatchCallItem
    | ApplyPatchCallOutputItem
    | HostedCallItem
)


class MessageItem(Strict):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: Id | None = None
    status: ItemStatus = None
    phase: Literal["commentary", "final_answer"] | None = None
    internal_chat_message_metadata_passthrough: Passthrough = None

    @model_validator(mode="after")
    def _shows_what_it_may(self) -> MessageItem:
        check_role(self.role, self.content)
        return self

    def item(self) -> Item:
        text, pictures = shown(self.content, "" if self.role == "assistant" else "\n")
        return Message(self.role, text, pictures=pictures)


class AnswerItem(MessageItem, Echoed):
    """A message from an earlier answer."""

    TAG: ClassVar = "answer"

    role: Literal["assistant"]


class ReasoningPart(Echoed):
    type: Literal["reasoning_text"]
    text: Text


class ReasoningItem(_Item):
    """Reasoning from an earlier answer. Summaries and encrypted reasoning of other servers are ignored."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningPart], up_to(limits.PARTS_MAX)] | None = None

    def item(self) -> Item:
        return Reasoning("\n".join(part.text for part in self.content or ()))


class FunctionCallItem(_Call):
    type: Literal["function_call"]
    name: Name
    arguments: Arguments
    caller: Caller = None
    namespace: Name | None = None


class FunctionCallOutputItem(Strict):
    """The output of a function or of a custom tool."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: Content
    id: Id | None = None
    status: ItemStatus = None
    name: Name | None = None
    caller: Caller = None
    namespace: Name | None = None
    internal_chat_message_metadata_passthrough: Passthrough = None

    def item(self) -> Item:
        shape = CallShape(OUTPUTS[self.type])
        text, pictures = shown(self.output)
        return FunctionCallOutput(self.call_id, text, shape=shape, pictures=pictures)


class FileSearchCallItem(StoredItem):
    """A file search from an earlier answer. Its results are not used again."""

    PREFIX: ClassVar = "fs"

    type: Literal["file_search_call"]
    id: Id | None = None
    queries: Annotated[list[Text], up_to(limits.PARTS_MAX)] = Field(default_factory=list)
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"] | None = None


class CompactionItem(_Item):
    """A summary that this server created and sealed for the caller's tenant."""

    PREFIX: ClassVar = "cmp"

    type: Literal["compaction"]
    encrypted_content: Annotated[str, StringConstraints(min_length=1, max_length=limits.SEALED_CHARS_MAX)]


class CompactionTrigger(Strict):
    """Asks for a compaction of what precedes it, in place of an answer."""

    type: Literal["compaction_trigger"]
    id: Id | None = None


class ItemReference(Strict):
    """A reference to an item that is stored in a conversation or in the output of a response."""

    TAG: ClassVar = "item_reference"

    type: Literal["item_reference"] | None = None
    id: Id


OTHERS = (ADDITIONAL_TOOLS, LISTING, UPDATE)
KINDS = frozenset(
    {"message", "reasoning", "file_search_call", "compaction", "compaction_trigger", "item_reference"}
    | {*OTHERS, *CALLS, *OUTPUTS}
)


def _only_points(item: Any) -> bool:
    """A reference need not say that it is one."""
    return key_of(item, "id") is not None and not any(key_of(item, key) for key in ("type", "role", "content"))


def _tag_of(item: Any) -> Any:
    if _only_points(item):
        return ItemReference.TAG
    kind = key_of(item, "type", "message")
    return AnswerItem.TAG if kind == "message" and key_of(item, "role") == "assistant" else kind


InputItem: TypeAlias = Annotated[
    MessageItem
    | AnswerItem
    | ReasoningItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | FileSearchCallItem
    | CompactionItem
    | CompactionTrigger
    | ItemReference
    | CallItem
    | McpItem,
    Tagged(f"An item must have one of the types {', '.join(sorted(KINDS))}.", _tag_of),
]


def without_triggers(entries: list[InputItem]) -> list[InputItem]:
    if any(isinstance(entry, CompactionTrigger) for entry in entries):
        raise ValueError("a compaction_trigger must be the last item of the input of a response")
    return entries


AS_ITEMS = short_for(lambda text: [{"role": "user", "content": text}])
