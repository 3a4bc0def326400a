"""The body of POST /v1/chat/completions: its messages become items, its tools are functions that the client runs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias
from uuid import UUID

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from agents.function_tool import FunctionTool
from agents.message import FunctionCall, FunctionCallOutput, Item, Message
from agents.turn import TOKENS_MAX, Turn
from inference.frozen import changed
from inference.generation import Sampling
from inference.prompt import Effort, TemplateOptions
from worker.wire import limits
from worker.wire.function_tools import NO_PARAMETERS, Description, Schema, enforces
from worker.wire.items import Arguments
from worker.wire.options import (
    Bias,
    CacheRetention,
    ChatFormat,
    Obfuscation,
    OutputTokens,
    PromptCacheOptions,
    StopSequence,
    TieredRequest,
    TokenId,
    TopLogprobs,
    TurnRequest,
    Verbosity,
)
from worker.wire.parts import ChatContent, SaidContent, check_role, shown
from worker.wire.response_request import ShortKey
from worker.wire.strict import (
    CallId,
    Echoed,
    Name,
    Strict,
    Tagged,
    Text,
    Unsupported,
    key_of,
    only,
    short_for,
    up_to,
    without_effect,
)
from worker.wire.tools import distinct, given, of_mode

SEED_MODULUS = 2**64  # the sampler takes unsigned seeds; clients may send any integer


class CalledFunction(Echoed):
    name: Name
    arguments: Arguments


class ToolCall(Echoed):
    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction


class SpeakerMessage(Strict):
    TAG: ClassVar = "speaker"

    role: Literal["system", "developer", "user"]
    content: ChatContent
    # Which of several speakers it is: chat templates have no place for it.
    name: Annotated[Annotated[str, StringConstraints(max_length=64)] | None, without_effect("messages.name")] = None

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

    TAG: ClassVar = "assistant"

    role: Literal["assistant"]
    content: SaidContent | None = None
    refusal: Text | None = None  # stands in for content, where another server refused
    tool_calls: Annotated[list[ToolCall], up_to(limits.TOOLS_MAX)] | None = None
    name: Annotated[str, StringConstraints(max_length=64)] | None = None
    audio: Unsupported = None
    function_call: Annotated[Any, only(None, instead="Send calls as 'tool_calls'.")] = None

    @model_validator(mode="after")
    def _says_something(self) -> AssistantMessage:
        if self.content is None and self.refusal is None and not self.tool_calls:
            raise ValueError("an assistant message needs content or tool_calls")
        return self

    def items(self) -> list[Item]:
        text = shown(self.content or [], "")[0] or self.refusal or ""
        said: list[Item] = [Message("assistant", text)] if text or not self.tool_calls else []
        return said + [
            FunctionCall(call.id, call.function.name, call.function.arguments) for call in self.tool_calls or ()
        ]


class ToolMessage(Strict):
    TAG: ClassVar = "tool"

    role: Literal["tool"]
    content: ChatContent
    tool_call_id: CallId
    name: Name | None = None

    def items(self) -> list[Item]:
        text, pictures = shown(self.content)
        return [FunctionCallOutput(self.tool_call_id, text, pictures=pictures)]


def _tag_of(message: Any) -> Any:
    role = key_of(message, "role")
    return SpeakerMessage.TAG if isinstance(role, str) and role not in ("assistant", "tool") else role


ChatMessage: TypeAlias = Annotated[
    SpeakerMessage | AssistantMessage | ToolMessage,
    Tagged("A message must be an object with a role.", _tag_of, "invalid_role"),
]


class FunctionDefinition(Strict):
    name: Name
    description: Description | None = None
    parameters: Schema | None = None
    strict: Annotated[bool | None, enforces("parameters")] = None


class ChatTool(Strict):
    type: Annotated[str, only("function")]
    function: FunctionDefinition

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def definition(self) -> FunctionTool:
        function = self.function
        parameters = function.parameters or NO_PARAMETERS
        return FunctionTool(function.name, function.description or "", parameters, bool(function.strict))


class NamedFunction(Strict):
    name: Name


class FunctionReference(Strict):
    type: Annotated[str, only("function")]
    function: NamedFunction


class AllowedTools(Strict):
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionReference], up_to(limits.TOOLS_MAX, least=1)]


class ChatToolChoice(Strict):
    """none, auto, required, one function, or a list of allowed functions."""

    type: Annotated[str, only("function", "mode", "allowed_tools")]
    mode: Literal["none", "auto", "required"] | None = None
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="after")
    def _is_one_of_the_forms(self) -> ChatToolChoice:
        if [name for name in ("mode", "function", "allowed_tools") if getattr(self, name) is not None] != [self.type]:
            raise ValueError("choose none, auto, required, a function by its name, or allowed_tools")
        return self

    @property
    def wanted(self) -> str:
        """auto, none or required, or the name of a function."""
        if self.function:
            return self.function.name
        return self.allowed_tools.mode if self.allowed_tools else self.mode or "auto"

    @property
    def allowed(self) -> frozenset[str] | None:
        """Names of the only functions that may be called; None: all."""
        return frozenset(each.function.name for each in self.allowed_tools.tools) if self.allowed_tools else None

    @property
    def names(self) -> frozenset[str]:
        """All functions that are named, to be checked against those of the request."""
        return self.allowed or (frozenset({self.function.name}) if self.function else frozenset())


class PredictedContent(Strict):
    """A text that the answer probably repeats, such as the file to be changed."""

    type: Annotated[str, only("content")]
    content: SaidContent


class ChatStreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: Annotated[bool | None, without_effect("stream_options.continuous_usage_stats")] = None
    include_obfuscation: Obfuscation = None


class ChoicesRequest(TurnRequest):
    """What completions of chats and of texts have in common: several choices, which differ only in their seed."""

    seed: int | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=limits.BIAS_MAX)] | None = None
    stop: Annotated[list[StopSequence], short_for(lambda text: [text]), Field(max_length=limits.STOPS_MAX)] | None = (
        None
    )
    stream_options: ChatStreamOptions | None = None
    user: Annotated[str, StringConstraints(max_length=limits.USER_CHARS_MAX)] | None = None

    @property
    def with_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def _sampling(self, *, max_tokens: int, top_logprobs: int | None) -> Sampling:
        return self.drawn(
            max_tokens=max_tokens,
            top_logprobs=top_logprobs,
            deterministic=self.deterministic,
            seed=None if self.seed is None else self.seed % SEED_MODULUS,
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
        )


class ChatRequest(ChoicesRequest, TieredRequest):
    PROMPT_PARAM: ClassVar = "messages"
    EFFORT_PARAM: ClassVar = "reasoning_effort"
    VERBOSITY_PARAM: ClassVar = "verbosity"
    SYNONYMS: ClassVar = {
        "input": "messages",
        "prompt": "messages",
        "max_output_tokens": "max_completion_tokens",
        "text": "response_format",
        "reasoning": "reasoning_effort",
        "stop_sequences": "stop",
    }

    messages: Annotated[list[ChatMessage], up_to(limits.ITEMS_MAX, least=1)]
    tools: Annotated[list[ChatTool], up_to(limits.TOOLS_MAX), AfterValidator(distinct)] | None = None
    tool_choice: Annotated[ChatToolChoice, short_for(of_mode), AfterValidator(given)] | None = None
    parallel_tool_calls: bool | None = None

    max_completion_tokens: OutputTokens | None = None
    max_tokens: OutputTokens | None = None

    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None

    stream: bool | None = None
    prompt_cache_key: ShortKey | None = None
    safety_identifier: ShortKey | None = None

    n: Annotated[int, Field(ge=1, le=limits.CHOICES_MAX)] | None = None
    response_format: ChatFormat | None = None
    store: Annotated[bool | None, without_effect("store", False)] = None  # no list of completions is kept
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    prediction: PredictedContent | None = None
    # As vLLM names them: the answer goes on from the last message, which is the assistant's.
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: Annotated[list[str] | None, only(None, ["text"])] = None
    prompt_cache_retention: CacheRetention = None
    prompt_cache_options: PromptCacheOptions | None = None
    audio: Unsupported = None
    function_call: Annotated[Any, only(None, instead="Send 'tool_choice', with 'tools'.")] = None
    functions: Annotated[Any, only(None, instead="Send them as 'tools'.")] = None
    moderation: Unsupported = None
    web_search_options: Unsupported = None

    @field_validator("top_logprobs")
    @classmethod
    def _comes_with_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and not info.data.get("logprobs"):
            raise ValueError("it requires logprobs to be true")
        return value

    @field_validator("add_generation_prompt")
    @classmethod
    def _begins_or_continues(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value is not None and value is bool(info.data.get("continue_final_message")):
            raise ValueError("it is the opposite of continue_final_message")
        return value

    @property
    def switches(self) -> TemplateOptions:
        return TemplateOptions(self.reasoning_effort, self.verbosity, self.chat_template_kwargs or {})

    @property
    def functions_given(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools or ())

    @property
    def choices(self) -> int:
        return self.n or 1

    def turns(self, tenant_id: UUID) -> list[Turn]:
        """One for each choice, which differ only in their seed."""
        turn = self.turn(tenant_id)
        return [apart(turn, index) for index in range(self.choices)]

    def turn(self, tenant_id: UUID) -> Turn:
        """The turn of the first choice."""
        turn = Turn(
            tenant_id=tenant_id,
            input=tuple(item for message in self.messages for item in message.items()),
            functions=tuple(tool.definition for tool in self.tools or ()),
            tool_choice=self.tool_choice.wanted if self.tool_choice else "auto",
            allowed_tools=self.tool_choice.allowed if self.tool_choice else None,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            answer_format=self.response_format.answer("response_format") if self.response_format else None,
            sampling=self._sampling(
                max_tokens=self._tokens_max or TOKENS_MAX,
                top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            ),
            prediction=shown(self.prediction.content, "")[0] if self.prediction else "",
            stop=tuple(self.stop or ()),
            switches=self.switches,
            hints=self.hints,
            caps=changed(self.caps, tokens=self._tokens_max, thought_tokens=self.thought_tokens),
        )
        return turn.continued if self.continue_final_message else turn

    @property
    def _tokens_max(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


def apart(turn: Turn, choice: int) -> Turn:
    """With the same seed, all choices would be identical."""
    seed = turn.sampling.seed
    if not choice or seed is None:
        return turn
    return changed(turn, sampling=changed(turn.sampling, seed=(seed + choice) % SEED_MODULUS))
