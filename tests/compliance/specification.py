"""The objects of the Open Responses specification (version 2026-04-24), as a strict reader knows them.

Keys that the specification does not name are allowed in objects, but events and items are exactly those of its unions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, TypeAdapter

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class Model(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class UrlCitation(Model):
    type: Literal["url_citation"]
    url: str
    title: str
    start_index: int
    end_index: int


class TopLogprob(Model):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class InputText(Model):
    type: Literal["input_text"]
    text: str


class OutputText(Model):
    type: Literal["output_text"]
    text: str
    annotations: list[UrlCitation]
    logprobs: list[Logprob] = []


class SummaryText(Model):
    type: Literal["summary_text"]
    text: str


class ReasoningText(Model):
    type: Literal["reasoning_text"]
    text: str


class Refusal(Model):
    type: Literal["refusal"]
    refusal: str


Part: TypeAlias = Annotated[InputText | OutputText | SummaryText | ReasoningText | Refusal, Discriminator("type")]


class Message(Model):
    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[Part]
    phase: Literal["commentary", "final_answer"] = "final_answer"


class FunctionCall(Model):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class FunctionCallOutput(Model):
    type: Literal["function_call_output"]
    id: str
    call_id: str
    output: str | list[InputText]
    status: ItemStatus


class Reasoning(Model):
    type: Literal["reasoning"]
    id: str
    summary: list[Part]
    content: list[Part] = []
    encrypted_content: str = ""


class Compaction(Model):
    type: Literal["compaction"]
    id: str
    encrypted_content: str


Item: TypeAlias = Annotated[Message | FunctionCall | FunctionCallOutput | Reasoning | Compaction, Discriminator("type")]


class Reason(Model):
    reason: str


class Failure(Model):
    code: str
    message: str


class FunctionTool(Model):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class FunctionChoice(Model):
    type: Literal["function"]
    name: str | None = None


class AllowedTools(Model):
    type: Literal["allowed_tools"]
    mode: Literal["none", "auto", "required"]
    tools: list[FunctionChoice]


class Text(Model):
    format: dict[str, Any]
    verbosity: Literal["low", "medium", "high"] = "medium"


class ReasoningSettings(Model):
    effort: str | None
    summary: str | None


class CachedTokens(Model):
    cached_tokens: int


class ReasoningTokens(Model):
    reasoning_tokens: int


class Usage(Model):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens
    output_tokens_details: ReasoningTokens


class Response(Model):
    """Every key must be there; null only where the type says so."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: str
    incomplete_details: Reason | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[Item]
    error: Failure | None
    tools: list[FunctionTool]
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: Text
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: ReasoningSettings | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class CompactedResponse(Model):
    id: str
    object: Literal["response.compaction"]
    output: list[Item]
    created_at: int
    usage: Usage


class Event(Model):
    sequence_number: int


class Snapshot(Event):
    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.failed",
        "response.incomplete",
    ]
    response: Response


class OutputItem(Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: Item


class OfItem(Event):
    item_id: str
    output_index: int


class OfContent(OfItem):
    content_index: int


class ContentPart(OfContent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: Part


class TextDelta(OfContent):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[Logprob] = []


class TextDone(OfContent):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[Logprob] = []


class RefusalDelta(OfContent):
    type: Literal["response.refusal.delta"]
    delta: str


class RefusalDone(OfContent):
    type: Literal["response.refusal.done"]
    refusal: str


class ReasoningDelta(OfContent):
    type: Literal["response.reasoning.delta"]
    delta: str


class ReasoningDone(OfContent):
    type: Literal["response.reasoning.done"]
    text: str


class SummaryPart(OfItem):
    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    summary_index: int
    part: Part


class SummaryDelta(OfItem):
    type: Literal["response.reasoning_summary_text.delta"]
    summary_index: int
    delta: str


class SummaryDone(OfItem):
    type: Literal["response.reasoning_summary_text.done"]
    summary_index: int
    text: str


class AnnotationAdded(OfContent):
    type: Literal["response.output_text.annotation.added"]
    annotation_index: int
    annotation: UrlCitation | None


class ArgumentsDelta(OfItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(OfItem):
    type: Literal["response.function_call_arguments.done"]
    arguments: str


class ErrorDetails(Model):
    type: str
    code: str | None
    message: str
    param: str | None


class ErrorEvent(Event):
    type: Literal["error"]
    error: ErrorDetails


class SocketError(Model):
    """An error on a WebSocket: of a request that never became a response, so it has no number."""

    type: Literal["error"]
    status: int
    error: ErrorDetails


StreamingEvent: TypeAlias = Annotated[
    Snapshot
    | OutputItem
    | ContentPart
    | TextDelta
    | TextDone
    | RefusalDelta
    | RefusalDone
    | ReasoningDelta
    | ReasoningDone
    | SummaryPart
    | SummaryDelta
    | SummaryDone
    | AnnotationAdded
    | ArgumentsDelta
    | ArgumentsDone
    | ErrorEvent,
    Field(discriminator="type"),
]
EVENTS: TypeAdapter[StreamingEvent] = TypeAdapter(StreamingEvent)
TERMINAL = frozenset({"response.completed", "response.failed", "response.incomplete"})


def told(event: dict[str, Any]) -> dict[str, Any]:
    """The same event. Raises ValidationError for one that the specification does not know in this form."""
    EVENTS.validate_python(event)
    return event


def made(response: dict[str, Any]) -> dict[str, Any]:
    """The same response. Raises ValidationError for one that the specification does not allow."""
    Response.model_validate(response)
    return response
