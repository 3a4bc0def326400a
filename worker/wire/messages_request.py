"""The bodies of POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from agents.requested_server import RequestedServer
from agents.turn import AnswerFormat, Turn, TurnServer
from inference.prompt import Effort, TemplateOptions
from worker.wire import limits
from worker.wire.messages_content import (
    BILLING,
    GivenMessage,
    MessageParam,
    SaidMessage,
    SystemContent,
    TextBlock,
    items_of,
    said,
)
from worker.wire.messages_tools import (
    CustomTool,
    DefinedTool,
    McpListingBlock,
    McpServerParam,
    McpServerParams,
    McpToolset,
    MessagesTool,
    MessagesToolChoice,
    SearchTool,
    ToolAdditionBlock,
    ToolChanges,
    requested,
)
from worker.wire.options import (
    AnswerSchema,
    GenerationParameters,
    Metadata,
    OutputTokens,
    StopSequence,
    TurnRequest,
    without_nulls,
)
from worker.wire.strict import Id, Lenient, ModelName, Unsupported, note, up_to, without_effect
from worker.wire.tools import distinct, given


class Thinking(Lenient):
    """Whether the model reasons before it answers, and with how many tokens at most."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Annotated[int, Field(ge=0, le=limits.OUTPUT_TOKENS_MAX)] | None = None
    display: Literal["summarized", "updates", "omitted"] | None = None


class OutputFormat(Lenient):
    type: Literal["json_schema"]
    body: AnswerSchema = Field(alias="schema")

    def answer(self, param: str) -> AnswerFormat:
        return AnswerFormat(self.body, param)


class OutputConfig(Lenient):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


def _distinct(servers: list[McpServerParam] | None) -> list[McpServerParam] | None:
    names = [server.name for server in servers or ()]
    if len(set(names)) < len(names):
        raise ValueError("two servers have the same name")
    return servers


def _toolsets(tools: Sequence[MessagesTool] | None) -> list[McpToolset]:
    return [tool for tool in tools or () if isinstance(tool, McpToolset)]


class MessagesInput(GenerationParameters, Lenient):
    """The prompt of the model."""

    model_config = ConfigDict(extra="ignore")
    PROMPT_PARAM: ClassVar = "messages"
    EFFORT_PARAM: ClassVar = "output_config.effort"
    VERBOSITY_PARAM: ClassVar = "verbosity"

    model: ModelName | None = None
    messages: Annotated[list[MessageParam], up_to(limits.ITEMS_MAX, least=1)]
    system: SystemContent | None = None
    tools: Annotated[list[MessagesTool], up_to(limits.TOOLS_MAX), AfterValidator(distinct)] | None = None
    mcp_servers: Annotated[McpServerParams | None, AfterValidator(_distinct), Field(validate_default=True)] = None
    tool_choice: Annotated[MessagesToolChoice, AfterValidator(given)] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the name before `output_config`
    cache_control: Annotated[Any, without_effect("cache_control")] = None

    @field_validator("messages")
    @classmethod
    def _asks(cls, value: list[MessageParam]) -> list[MessageParam]:
        last = value[-1]
        if isinstance(last, SaidMessage) and not all(isinstance(block, TextBlock) for block in last.content):
            raise ValueError("the last message must be the user's, or text of the assistant to be continued")
        return value

    @field_validator("system")
    @classmethod
    def _without_billing(cls, value: SystemContent | None, info: ValidationInfo) -> SystemContent | None:
        kept = [block for block in value or () if not block.text.startswith(BILLING)]
        if len(kept) < len(value or ()):
            note(info, f"system.{BILLING}")
        return kept

    @field_validator("mcp_servers")
    @classmethod
    def _has_the_servers_of_toolsets(
        cls, value: McpServerParams | None, info: ValidationInfo
    ) -> McpServerParams | None:
        requested(value or (), _toolsets(info.data.get("tools")))
        return value

    @property
    def switches(self) -> TemplateOptions:
        return TemplateOptions(self._effort, None, self.chat_template_kwargs or {})

    @property
    def _effort(self) -> Effort | None:
        """If thinking is enabled without a budget, the model's default."""
        wanted = self.output_config.effort if self.output_config else None
        if self.thinking and self.thinking.type == "disabled":
            return "none"
        if wanted is None:
            return "medium" if self.thinking else None
        return wanted

    @property
    def effort_params(self) -> Sequence[str]:
        effort = self.output_config.effort if self.output_config else None
        return ([self.EFFORT_PARAM] if effort else []) + (["thinking"] if self.thinking else [])

    @cached_property
    def functions_given(self) -> frozenset[str]:
        """The names of all functions of the client: those that messages define too."""
        given = (message.content for message in self.messages if isinstance(message, GivenMessage))
        defined = (
            block.tool.definition.name
            for content in given
            for block in content
            if isinstance(block, ToolAdditionBlock) and isinstance(block.tool, DefinedTool)
        )
        return frozenset((*(tool.name for tool in self._customs), *defined))

    @property
    def _customs(self) -> list[CustomTool]:
        return [tool for tool in self.tools or () if isinstance(tool, CustomTool)]

    @property
    def servers(self) -> Mapping[str, RequestedServer]:
        """By the parameters that name them."""
        said = (block for message in self.messages if isinstance(message, SaidMessage) for block in message.content)
        listings = [block for block in said if isinstance(block, McpListingBlock)]
        return requested(self.mcp_servers or (), _toolsets(self.tools), listings)

    def turn(self, tenant_id: UUID, servers: Sequence[TurnServer] = ()) -> Turn:
        """`servers` are those that it names, with their tools."""
        choice, functions = self.tool_choice, tuple(tool.definition for tool in self._customs)
        changes = ToolChanges((*functions, *(function for server in servers for function in server.functions)))
        items = items_of(self.messages, changes)
        turn = Turn(
            tenant_id=tenant_id,
            input=items,
            instructions=said(self.system or (), "\n\n") or None,
            functions=functions,
            tool_searches=tuple(tool.search for tool in self.tools or () if isinstance(tool, SearchTool)),
            allowed_tools=changes.allowed,
            tool_choice=choice.wanted if choice else "auto",
            parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
            answer_format=self._format,
            sampling=self.drawn(),
            switches=self.switches,
        ).using(servers)
        return turn.continued if self.messages[-1].role == "assistant" else turn

    @property
    def _format(self) -> AnswerFormat | None:
        if self.output_config and self.output_config.format:
            return self.output_config.format.answer("output_config.format.schema")
        return self.output_format.answer("output_format.schema") if self.output_format else None


class Diagnostics(Lenient):
    """Without an id, the message may only be named by a later one."""

    previous_message_id: Id | None = None


class MessagesRequest(MessagesInput, TurnRequest):
    model_config = ConfigDict(extra="ignore")

    max_tokens: OutputTokens
    stream: bool | None = None
    stop_sequences: Annotated[list[StopSequence], Field(max_length=limits.STOPS_MAX)] | None = None
    metadata: Annotated[Metadata, BeforeValidator(without_nulls)] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    diagnostics: Diagnostics | None = None

    container: Unsupported = None
    prefill: Unsupported = None
    thread: Unsupported = None

    @property
    def thought_tokens(self) -> int | None:
        given = self.thinking.budget_tokens if self.thinking else None
        return super().thought_tokens if given is None else given

    @property
    def shows_thoughts(self) -> bool:
        return not (self.thinking and self.thinking.display == "omitted")

    def turn(self, tenant_id: UUID, servers: Sequence[TurnServer] = ()) -> Turn:
        turn = super().turn(tenant_id, servers)
        caps = replace(self.caps, tokens=self.max_tokens, thought_tokens=self.thought_tokens)
        stop = tuple(self.stop_sequences or ())
        sampling = replace(turn.sampling, max_tokens=self.max_tokens, deterministic=self.deterministic)
        return replace(turn, sampling=sampling, stop=stop, caps=caps, hints=self.hints)
