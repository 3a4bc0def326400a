"""Messages of a chat completion, which become items."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, StringConstraints, Tag, field_validator, model_validator

from agents.message import FunctionCall, FunctionCallOutput, Item, Message
from worker.wire import limits
from worker.wire.images import check_role
from worker.wire.items import Arguments
from worker.wire.parts import ChatContent, SaidContent, shown
from worker.wire.strict import CallId, Echoed, Name, Strict, Unsupported, up_to


class CalledFunction(Echoed):
    name: Name
    arguments: Arguments


class ToolCall(Echoed):
    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction


class SpeakerMessage(Strict):
    role: Literal["system", "developer", "user"]
    content: ChatContent
    name: Annotated[str, StringConstraints(max_length=64)] | None = None

    @field_validator("role", mode="before")
    @classmethod
    def _is_a_role(cls, role: object) -> object:
        """Names those of the other kinds of messages, too: what has no known role is looked at as one of these."""
        if role not in ("system", "developer", "user"):
            raise ValueError("Roles are system, developer, user, assistant and tool.")
        return role

    @model_validator(mode="after")
    def _shows_what_it_may(self) -> SpeakerMessage:
        check_role(self.role, self.content)
        return self

    def items(self) -> list[Item]:
        text, pictures = shown(self.content)
        return [Message(self.role, text, pictures=pictures)]


class AssistantMessage(Echoed):
    """A message from an earlier completion. Its reasoning is ignored: models reason anew."""

    role: Literal["assistant"]
    content: SaidContent | None = None
    tool_calls: Annotated[list[ToolCall], up_to(limits.TOOLS_MAX)] | None = None
    name: Annotated[str, StringConstraints(max_length=64)] | None = None
    audio: Unsupported = None
    function_call: Unsupported = None

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and not self.tool_calls:
            raise ValueError("an assistant message needs content or tool_calls")
        return self

    def items(self) -> list[Item]:
        text, _ = shown(self.content or [], "")
        said: list[Item] = [Message("assistant", text)] if text or not self.tool_calls else []
        return said + [
            FunctionCall(call.id, call.function.name, call.function.arguments) for call in self.tool_calls or ()
        ]


class ToolMessage(Strict):
    role: Literal["tool"]
    content: ChatContent
    tool_call_id: CallId
    name: Name | None = None

    def items(self) -> list[Item]:
        text, pictures = shown(self.content)
        return [FunctionCallOutput(self.tool_call_id, text, pictures=pictures)]


def _speaker(message: Any) -> str | None:
    role = message.get("role") if isinstance(message, dict) else getattr(message, "role", None)
    return {"assistant": "assistant", "tool": "tool"}.get(role, "speaker") if isinstance(role, str) else None


ChatMessage: TypeAlias = Annotated[
    Annotated[SpeakerMessage, Tag("speaker")]
    | Annotated[AssistantMessage, Tag("assistant")]
    | Annotated[ToolMessage, Tag("tool")],
    Discriminator(
        _speaker, custom_error_type="invalid_role", custom_error_message="A message must be an object with a role."
    ),
]
