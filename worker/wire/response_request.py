"""The body of POST /v1/responses; and messages on a WebSocket: what a client sends, also by POST to a running response,
and how errors are reported. Everything else that the worker sends there is the events of a streamed response, one per
message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias
from uuid import UUID

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    WrapValidator,
    field_validator,
    model_validator,
)

from agents.function_tool import FunctionTool
from agents.message import ConfigurationUpdate, Item
from agents.requested_server import RequestedServer
from agents.turn import TOKENS_MAX, Compacting, FileSearch, Turn
from inference.frozen import changed
from inference.prompt import Effort, TemplateOptions
from worker.errors import ApiError
from worker.wire import limits
from worker.wire.items import AS_ITEMS, CompactionTrigger, InputItem, MessageItem, without_triggers
from worker.wire.mcp import McpTool
from worker.wire.options import (
    LOGPROBS,
    RESULTS,
    CacheRetention,
    Include,
    Obfuscation,
    OutputTokens,
    PlainText,
    ResponseCacheOptions,
    TextFormat,
    TieredRequest,
    TopLogprobs,
    Verbosity,
)
from worker.wire.strict import Id, Strict, Text, Unsupported, only, short_for, up_to, without_effect
from worker.wire.tools import (
    AUTO,
    Choice,
    FileSearchTool,
    ServerTool,
    Tool,
    ToolSearchTool,
    distinct,
    given,
    placed,
)

Summary: TypeAlias = Literal["auto", "concise", "detailed"]
ShortKey: TypeAlias = Annotated[str, StringConstraints(max_length=limits.KEY_CHARS_MAX)]


class ConversationReference(Strict):
    id: Id


PLAIN_TEXT = PlainText()


class TextConfig(Strict):
    format: TextFormat = PLAIN_TEXT
    verbosity: Verbosity | None = None


class Reasoning(Strict):
    effort: Effort | None = None
    # Which earlier reasoning a prompt shows is left to its template.
    context: Annotated[
        Literal["auto", "current_turn", "all_turns"] | None, without_effect("reasoning.context", "auto")
    ] = None
    mode: Annotated[Literal["standard", "pro"] | None, without_effect("reasoning.mode", "standard")] = None
    summary: Annotated[Summary | None, without_effect("reasoning.summary")] = None  # reasoning is always sent in full
    # Not of OpenAI's: gateways have it.
    max_tokens: Annotated[int, Field(ge=0, le=limits.OUTPUT_TOKENS_MAX)] | None = None
    generate_summary: Annotated[Summary | None, without_effect("reasoning.generate_summary")] = None


class BackgroundOptions(Strict):
    """When a background response should be ready. It starts as soon as there is room, which meets every window."""

    completion_window: Annotated[
        Literal["soonest", "2h", "8h"] | None, without_effect("background_options.completion_window", "soonest")
    ] = None
    continuation_id: Annotated[ShortKey | None, without_effect("background_options.continuation_id")] = None


class StreamOptions(Strict):
    include_obfuscation: Obfuscation = None


class ContextManagement(Strict):
    """The conversation is compacted first if its prompt is longer than this number of tokens."""

    type: Literal["compaction"]
    compact_threshold: OutputTokens | None = None


class ResponseRequest(TieredRequest):
    EFFORT_PARAM: ClassVar = "reasoning.effort"
    VERBOSITY_PARAM: ClassVar = "text.verbosity"
    SYNONYMS: ClassVar = {
        "messages": "input",
        "system": "instructions",
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text.format",
        "verbosity": "text.verbosity",
        "reasoning_effort": "reasoning.effort",
        "functions": "tools",
        "function_call": "tool_choice",
    }

    input: Annotated[list[InputItem], up_to(limits.ITEMS_MAX), AS_ITEMS] = Field(default_factory=list)
    instructions: Text | None = None
    conversation: Annotated[ConversationReference, short_for(lambda id: {"id": id})] | None = None
    previous_response_id: Id | None = None
    background: bool | None = None
    background_options: BackgroundOptions | None = None
    store: bool | None = None
    include: Include | None = None

    tools: Annotated[list[Tool], up_to(limits.TOOLS_MAX), AfterValidator(distinct), WrapValidator(placed)] | None = None
    tool_choice: Annotated[Choice, AfterValidator(given)] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None

    max_output_tokens: OutputTokens | None = None

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_key: ShortKey | None = None
    safety_identifier: ShortKey | None = None
    user: Annotated[str, StringConstraints(max_length=limits.USER_CHARS_MAX)] | None = None

    top_logprobs: TopLogprobs | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt_cache_retention: CacheRetention = None
    prompt_cache_options: ResponseCacheOptions | None = None
    context_management: Annotated[list[ContextManagement], Field(max_length=1)] | None = None
    moderation: Unsupported = None
    prompt: Unsupported = None
    image: Unsupported = None
    # Sent by Codex.
    access_programs: Annotated[Any, without_effect("access_programs")] = None
    client_metadata: Annotated[Any, without_effect("client_metadata")] = None

    @field_validator("input")
    @classmethod
    def _triggers_at_the_end(cls, value: list[InputItem]) -> list[InputItem]:
        without_triggers(value[:-1])
        return value

    @field_validator("background")
    @classmethod
    def _is_answered(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and any(isinstance(entry, CompactionTrigger) for entry in info.data.get("input", ())):
            raise ValueError("a compaction_trigger is not taken in the background")
        return value

    @field_validator("previous_response_id")
    @classmethod
    def _stands_alone(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("conversation") is not None:
            raise ValueError("give either previous_response_id or conversation, not both")
        return value

    @field_validator("background_options")
    @classmethod
    def _delays_only_the_background(
        cls, value: BackgroundOptions | None, info: ValidationInfo
    ) -> BackgroundOptions | None:
        if value and value.completion_window in ("2h", "8h") and not info.data.get("background"):
            raise ValueError("a completion_window of 2h or 8h requires background to be true")
        return value

    @field_validator("store")
    @classmethod
    def _keeps_what_is_made_later(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value is False and info.data.get("background"):
            raise ValueError("a background response must be stored")
        return value

    @model_validator(mode="after")
    def _makes_tools(self) -> Self:
        """Here, since a long body is validated in a thread: ten thousand tools take 0.1 s."""
        _ = self.functions, self.tools_echo
        return self

    @cached_property
    def functions(self) -> tuple[FunctionTool, ...]:
        return tuple(function for tool in self.tools or () for function in tool.functions)

    @cached_property
    def tools_echo(self) -> list[dict[str, Any]]:
        return [tool.echo() for tool in self.tools or ()]

    @property
    def streamed(self) -> bool:
        """Whether the client reads events while the response is made."""
        return bool(self.stream) and not self.background

    @property
    def only_reads(self) -> bool:
        """Whether the prompt is only read, for the request that continues this one."""
        return bool(self.prompt_cache_options and self.prompt_cache_options.prewarm)

    @property
    def compared_id(self) -> str | None:
        """The response whose prompt this one is compared with, to tell why its cache was not found."""
        return self.prompt_cache_options.comparison_response_id if self.prompt_cache_options else None

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if self.conversation else None

    @property
    def choice(self) -> Choice:
        return self.tool_choice or AUTO

    @property
    def format(self) -> TextFormat:
        return self.text.format if self.text else PLAIN_TEXT

    @property
    def switches(self) -> TemplateOptions:
        effort = self.reasoning.effort if self.reasoning else None
        return TemplateOptions(effort, self.text.verbosity if self.text else None, self.chat_template_kwargs or {})

    @property
    def thought_tokens(self) -> int | None:
        given = self.reasoning.max_tokens if self.reasoning else None
        return super().thought_tokens if given is None else given

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def servers(self) -> Mapping[str, RequestedServer]:
        """By the parameters that name them."""
        given = (tool for tool in self.tools or () if isinstance(tool, McpTool))
        return {f"tools.{tool.server_label}.server_url": tool.server for tool in given}

    def includes(self, value: str) -> bool:
        return value in (self.include or ())

    @property
    def with_results(self) -> bool:
        return self.includes(RESULTS)

    def configured(self, items: Iterable[Item]) -> ResponseRequest:
        """With what the newest updates among the items of the conversation say."""
        updates = [item for item in items if isinstance(item, ConfigurationUpdate)]
        efforts = [update.effort for update in updates if update.effort is not None]
        formats = [update.format for update in updates if update.format is not None]
        changes: dict[str, Any] = {}
        if efforts:
            changes["reasoning"] = (self.reasoning or Reasoning()).model_copy(update={"effort": efforts[-1]})
        if formats:
            told = TextConfig.model_validate({"format": formats[-1]})
            changes["text"] = (self.text or told).model_copy(update={"format": told.format})
        return self.model_copy(update=changes) if changes else self

    def turn(self, tenant_id: UUID, items: tuple[Item, ...], history: tuple[Item, ...]) -> Turn:
        allowed, tools = self.choice.allowed, self.tools or ()
        return Turn(
            tenant_id=tenant_id,
            input=items,
            history=history,
            instructions=self.instructions,
            functions=self.functions,
            tool_searches=tuple(each for tool in tools if isinstance(tool, ToolSearchTool) for each in tool.searches),
            server_tools=tuple(tool.name for tool in tools if isinstance(tool, ServerTool)),
            file_search=None if self.only_reads else self._file_search,
            tool_choice=self.choice.wanted,
            allowed_tools=allowed,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            answer_format=self.format.answer("text.format"),
            sampling=self.drawn(
                max_tokens=self.max_output_tokens or TOKENS_MAX,
                deterministic=self.deterministic,
                top_logprobs=self.top_logprobs or 0 if self.top_logprobs or self.includes(LOGPROBS) else None,
            ),
            switches=self.switches,
            hints=self.hints,
            caps=changed(
                self.caps,
                calls=self.max_tool_calls,
                tokens=self.max_output_tokens,
                thought_tokens=self.thought_tokens,
            ),
            only_reads=self.only_reads,
            compacting=self._compacting,
            truncates=self.truncation == "auto",
        )

    @property
    def _compacting(self) -> Compacting | None:
        if self.input and isinstance(self.input[-1], CompactionTrigger):
            return Compacting(alone=True)
        return Compacting(self.context_management[0].compact_threshold) if self.context_management else None

    @property
    def _file_search(self) -> FileSearch | None:
        """It runs before the answer, so one that is not allowed is not requested."""
        allowed = self.choice.allowed
        tools = (tool for tool in self.tools or () if isinstance(tool, FileSearchTool))
        return next((tool.search for tool in tools if allowed is None or tool.type in allowed), None)


TYPE_CHARS_MAX = 100  # of what is quoted


def _creates(type: str) -> str:
    if type != "response.create":
        raise ValueError(f"a message has the type 'response.create' or 'response.steer', not '{type[:TYPE_CHARS_MAX]}'")
    return type


class CreateMessage(ResponseRequest):
    """The body of POST /v1/responses; every response is streamed."""

    type: Annotated[str, AfterValidator(_creates)]
    stream: Annotated[bool | None, only(None, True)] = None
    background: Annotated[bool | None, only(None, False)] = None
    generate: bool | None = None
    stream_id: Annotated[str, StringConstraints(min_length=1, max_length=limits.KEY_CHARS_MAX)] | None = None

    @property
    def streamed(self) -> bool:
        return True

    @property
    def only_reads(self) -> bool:
        return self.generate is False or super().only_reads


class SaidMessage(MessageItem):
    role: Literal["user"]


class SteerRequest(Strict):
    """What somebody says to a response while it runs. `stop_tools`: without waiting for the tools that run."""

    input: Annotated[list[SaidMessage], up_to(limits.SAID_MAX, 1), AS_ITEMS]
    stop_tools: bool = False


class SteerMessage(SteerRequest):
    """Ours is only `stop_tools`."""

    type: Literal["response.steer"]
    previous_response_id: Id


def error_event(error: ApiError) -> dict[str, Any]:
    return {"type": "error", "status": error.status, **error.body}
