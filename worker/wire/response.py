"""The response object of the public contract, its items, and the numbered events of its stream, in two dialects:
OpenAI's own and that of the Open Responses specification. And what a person thinks of it.

The header `OpenResponses-Version` of the request that creates a response selects the second; the default is the first.
They differ only in this: reasoning has another name, an error is an event before the response fails, and citations are
identified by their URL alone.

The order of events is fixed: response.created (then response.queued in the background), response.in_progress, then per
output item its `added`, its deltas and its `done`, and one terminal response event. Pure.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from itertools import chain
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import StringConstraints

from agents.events import (
    STEERED,
    ArgumentsDelta,
    Event,
    ItemFinished,
    ItemStarted,
    Queued,
    ReasoningDelta,
    RetrievalStarted,
    SourcesFound,
    TextDelta,
    TurnFinished,
    TurnStarted,
    Usage,
)
from agents.message import FunctionCall, InputText, Item, Message, Reasoning, ToolListing, new_id
from agents.payload import CALLS, logprob_payloads, to_payload
from inference.frozen import dataclass
from worker.wire import events as wire
from worker.wire import limits
from worker.wire.events import WireEvent, cut
from worker.wire.options import SOURCES, TRACE, tier_used
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import Strict

EMPTY_TEXT = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
EMPTY_REASONING = {"type": "reasoning_text", "text": ""}
DIALECT_HEADER = "OpenResponses-Version"
RENAMED = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}


class Dialect(Enum):
    OPENAI = "openai"
    OPEN_RESPONSES = "open_responses"

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Dialect:
        return cls.OPEN_RESPONSES if DIALECT_HEADER in headers else cls.OPENAI

    def spelled(self, events: Iterable[WireEvent]) -> Iterable[WireEvent]:
        """Events of the first dialect in this one."""
        return events if self is Dialect.OPENAI else map(_renamed, chain.from_iterable(map(_with_error, events)))

    def cited(self, item: dict[str, Any]) -> dict[str, Any]:
        """An item of the first dialect, with its citations in this one."""
        if self is Dialect.OPENAI or item["type"] != "message":
            return item
        return {**item, "content": [_with_urls(part) for part in item["content"]]}


def _with_error(event: WireEvent) -> list[WireEvent]:
    if event["type"] != "response.failed":
        return [event]
    return [{"type": "error", "error": {"type": "server_error", "param": None, **event["response"]["error"]}}, event]


def _renamed(event: WireEvent) -> WireEvent:
    return {**event, "type": RENAMED.get(event["type"], event["type"])}


def _with_urls(part: dict[str, Any]) -> dict[str, Any]:
    notes = part.get("annotations")
    return {**part, "annotations": [{**note, "type": "url_citation"} for note in notes]} if notes else part


def public_item(item: Item, with_results: bool = False, dialect: Dialect = Dialect.OPENAI) -> dict[str, Any]:
    """An item as clients see it: search results only on request."""
    return dialect.cited(_public(to_payload(item), with_results))


def public_response(body: dict[str, Any], with_results: bool = False) -> dict[str, Any]:
    """A stored response as clients see it."""
    return {**body, "output": [_public(item, with_results) for item in body["output"]]}


def _public(payload: dict[str, Any], with_results: bool) -> dict[str, Any]:
    match payload:
        case {"type": "file_search_call"} if not with_results:
            return {**payload, "results": None}
        case {"type": "apply_patch_call", "status": "incomplete" | "failed"}:  # the contract has no other
            return {**payload, "status": "in_progress"}
        case {"type": type, "status": "failed"} if type in CALLS and type != "mcp_call":  # others do not fail
            return {**payload, "status": "incomplete"}
    return payload


BUDGET = "firsttoken:budget"  # metadata of an answer that was concluded because this budget was spent
Status: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0, **usage.image_details},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """What all snapshots of one response share: its identity and its request."""

    request: ResponseRequest
    model: str
    id: str = field(default_factory=lambda: new_id("resp"))
    created_at: int = field(default_factory=lambda: int(time.time()))
    dialect: Dialect = Dialect.OPENAI
    usual: Mapping[str, float] = field(default_factory=dict)  # sampling of the model, where the request sets none
    _told: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # the first snapshot

    def queued(self) -> dict[str, Any]:
        return self.snapshot("queued", ())

    def started(self) -> dict[str, Any]:
        return self.snapshot("in_progress", ())

    def finished(self, turn: TurnFinished, output: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The final object of a turn; `output` are its items in the public format."""
        snapshot = self.snapshot(turn.status, output)
        if turn.status != "cancelled":  # the usage of an interrupted answer is not known
            snapshot["usage"] = usage_object(turn.usage)
        if turn.status == "completed":
            snapshot["completed_at"] = int(time.time())
        if turn.status == "incomplete":
            reason = STEERED if turn.cut == STEERED else "max_output_tokens"
            snapshot["incomplete_details"] = {"reason": reason, **cut(turn)}
        if turn.budget is not None and len(snapshot["metadata"]) < limits.METADATA_PAIRS_MAX:
            snapshot["metadata"] = {**snapshot["metadata"], BUDGET: turn.budget}
        if turn.status == "failed":
            snapshot["error"] = turn.failure
        return snapshot

    def snapshot(self, status: Status, output: Sequence[dict[str, Any]]) -> dict[str, Any]:
        if not self._told:
            self._told.update(self._first())
        return {**self._told, "status": status, "output": list(output)}

    def _first(self) -> dict[str, Any]:
        request, sampling = self.request, self.request.drawn().completed(self.usual)
        verbosity = request.switches.verbosity
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": None,
            "status": None,
            "incomplete_details": None,
            "error": None,
            "model": self.model,
            "previous_response_id": request.previous_response_id,
            "conversation": request.conversation and {"id": request.conversation.id},
            "instructions": request.instructions,
            "output": [],
            "tools": request.tools_echo,
            "tool_choice": request.choice.echo(),
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "max_tool_calls": request.max_tool_calls,
            "truncation": request.truncation or "disabled",
            "text": {"format": request.format.echo(), **({"verbosity": verbosity} if verbosity else {})},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "top_logprobs": request.top_logprobs or 0,
            "reasoning": {"effort": request.switches.effort, "summary": None},
            "usage": None,
            "max_output_tokens": request.max_output_tokens,
            "store": request.stored,
            "background": request.background is True,
            "service_tier": tier_used(request.service_tier),
            "metadata": request.metadata or {},
            "safety_identifier": request.safety_identifier,
            "prompt_cache_key": request.prompt_cache_key,
            **({"prompt_cache_options": options.echo()} if (options := request.prompt_cache_options) else {}),
            "user": request.user,
        }


RATING, COMMENT = "firsttoken:rating", "firsttoken:comment"


class Feedback(Strict):
    """A rating of null removes the feedback."""

    rating: Literal["up", "down"] | None
    comment: Annotated[str, StringConstraints(max_length=limits.METADATA_VALUE_MAX)] | None = None

    @property
    def notes(self) -> dict[str, str | None]:
        return {RATING: self.rating, COMMENT: (self.comment or None) if self.rating else None}


def feedback_object(notes: Mapping[str, str] | None) -> dict[str, str | None] | None:
    """As items show it."""
    return None if notes is None else {"rating": notes.get(RATING), "comment": notes.get(COMMENT)}


class EventEncoder:
    """Encodes one response. Keeps its items so far, so that an interrupted turn can still be stored.

    The first `told` events of its opening were sent before: when it was queued, or by a lost worker.
    """

    def __init__(self, frame: ResponseFrame, told: int = 0) -> None:
        self._frame = frame
        self._next_number = told
        self._items: dict[int, Item] = {}  # by output index
        self._texts: dict[int, list[str]] = {}  # of unfinished items, the text sent so far
        self._inputs: dict[int, InputText] = {}  # of unfinished calls of custom tools
        self._templates: dict[str, wire.Template] = {}  # by item id

    def queue(self) -> list[WireEvent]:
        """The events of a response that is queued for a worker."""
        return self._numbered(self._opening[:-1])

    def events_of(self, event: Event) -> list[WireEvent]:
        """The wire events of an event. The end of a turn is encoded by `conclude`, once it is stored."""
        return self._numbered(self._narrate(event))

    def frames(self, event: Event) -> list[bytes]:
        """`events_of`, encoded. Nearly all events are deltas of text: only their text and number differ."""
        if (isinstance(event, TextDelta) and not event.logprobs) or isinstance(event, ReasoningDelta):
            self._texts[event.output_index].append(event.text)
            number, self._next_number = self._next_number, self._next_number + 1
            template = self._templates.get(event.item_id) or self._template(event)
            return [template.numbered(event.text, number)]
        return [wire.encode(each) for each in self.events_of(event)]

    def _template(self, event: TextDelta | ReasoningDelta) -> wire.Template:
        [spelled] = self._frame.dialect.spelled([_delta(event, wire.HOLE)])
        return self._templates.setdefault(event.item_id, wire.Template(wire.encode(spelled)))

    def replay(self, event: Event) -> None:
        """Take note of an event that a lost worker sent."""
        for _ in self._narrate(event):
            pass

    def steered(self, steer_id: str) -> list[WireEvent]:
        """What was said to the response was accepted."""
        return self._numbered([wire.steer("accepted", self._frame.id, steer_id)])

    @property
    def tells_trace(self) -> bool:
        return self._frame.request.includes(TRACE)

    def trace(self, payload: dict[str, Any]) -> list[WireEvent]:
        """The trace, if requested. Sent before the terminal event, once that is stored."""
        return self._last([{"type": TRACE, "trace": payload}] if self.tells_trace else [], self._next_number)

    def conclude(self, snapshot: dict[str, Any]) -> list[WireEvent]:
        """The terminal event, named after the status of the final response; a cancelled one has none. It follows the
        trace. May be called again, for another end in its place.
        """
        if snapshot["status"] == "cancelled":
            return []
        return self._last([wire.response(snapshot["status"], snapshot)], self._next_number + self.tells_trace)

    @property
    def output(self) -> tuple[Item, ...]:
        """The items so far; unfinished ones are incomplete."""
        return tuple(self._so_far(index) for index in sorted(self._items))

    def _so_far(self, output_index: int) -> Item:
        item, text = self._items[output_index], "".join(self._texts.get(output_index, ()))
        if item.status != "in_progress":
            return item
        match item:
            case Message() | Reasoning():
                return replace(item, text=text, status="incomplete")
            case FunctionCall():
                return replace(item, arguments=text, status="incomplete")
            case ToolListing():
                return item
        return replace(item, status="incomplete")

    def _numbered(self, events: Iterable[WireEvent]) -> list[WireEvent]:
        numbered = self._last(events, self._next_number)
        self._next_number += len(numbered)
        return numbered

    def _last(self, events: Iterable[WireEvent], number: int) -> list[WireEvent]:
        spelled = self._frame.dialect.spelled(events)
        return [{**event, "sequence_number": n} for n, event in enumerate(spelled, number)]

    def _narrate(self, event: Event) -> Iterator[WireEvent]:
        match event:
            case TurnStarted():
                yield from self._opening[self._next_number :]
            case Queued():
                yield {"type": wire.QUEUED, "response_id": self._frame.id, **wire.waiting(event)}
            case RetrievalStarted():
                yield from self._retrieval_started(event)
            case SourcesFound():
                yield from self._sources_found(event)
            case ItemStarted():
                yield from self._item_started(event)
            case TextDelta() | ReasoningDelta():
                self._texts[event.output_index].append(event.text)
                yield _delta(event, event.text)
            case ArgumentsDelta():
                yield from self._arguments(event)
            case ItemFinished(item=FunctionCall() as call) if call.is_pending:
                self._items[event.output_index] = call
                self._texts.pop(event.output_index, None)
                yield wire.of_item("mcp_call_arguments.done", event.output_index, call.id, arguments=call.arguments)
            case ItemFinished():
                self._items[event.output_index] = event.item
                self._texts.pop(event.output_index, None)
                yield from self._finish_of(event.output_index, event.item)
            case TurnFinished():
                return

    @property
    def _opening(self) -> list[WireEvent]:
        started = self._frame.started()
        if not self._frame.request.background:
            return [wire.response("created", started), wire.response("in_progress", started)]
        queued = self._frame.queued()
        kinds = ("created", "queued", "in_progress")
        return [wire.response(kind, snapshot) for kind, snapshot in zip(kinds, (queued, queued, started), strict=True)]

    def _retrieval_started(self, event: RetrievalStarted) -> Iterator[WireEvent]:
        self._items[event.output_index] = event.item
        yield wire.output_item("added", event.output_index, {**public_item(event.item), "queries": []})
        for kind in ("in_progress", "searching"):
            yield wire.of_item(f"file_search_call.{kind}", event.output_index, event.item.id)

    def _sources_found(self, event: SourcesFound) -> Iterator[WireEvent]:
        self._items[event.output_index] = event.item
        yield wire.of_item("file_search_call.completed", event.output_index, event.item.id)
        yield wire.output_item("done", event.output_index, public_item(event.item, self._frame.request.with_results))
        if self._frame.request.includes(SOURCES):
            yield wire.sources(self._frame.id, event.output_index, event.passages)

    def _item_started(self, event: ItemStarted) -> Iterator[WireEvent]:
        self._items[event.output_index] = event.item
        self._texts[event.output_index] = []
        if isinstance(event.item, FunctionCall) and event.item.shape.form == "custom":
            self._inputs[event.output_index] = InputText()
        if _waits(event.item):
            return
        payload = public_item(event.item)
        speaks = isinstance(event.item, Message | Reasoning)
        if speaks:
            payload["content"] = []
        yield wire.output_item("added", event.output_index, payload)
        if (kind := _runs_as(event.item)) is not None:
            yield wire.of_item(f"mcp_{kind}.in_progress", event.output_index, event.item.id)
        if speaks:
            part = EMPTY_TEXT if isinstance(event.item, Message) else EMPTY_REASONING
            yield wire.of_text("content_part.added", event.output_index, event.item.id, part=part)

    def _arguments(self, event: ArgumentsDelta) -> Iterator[WireEvent]:
        """Of a function or a custom tool; the calls of other tools are sent when they are whole."""
        index, item = event.output_index, self._items[event.output_index]
        self._texts[index].append(event.text)
        if index in self._inputs:
            if text := self._inputs[index].feed(event.text):
                yield wire.of_item("custom_tool_call_input.delta", index, event.item_id, delta=text)
        elif isinstance(item, FunctionCall) and item.shape.form in ("function", "mcp"):
            yield wire.of_item(f"{item.shape.form}_call_arguments.delta", index, event.item_id, delta=event.text)

    def _finish_of(self, output_index: int, item: Item) -> Iterator[WireEvent]:
        payload = public_item(item, dialect=self._frame.dialect)
        if isinstance(item, Message):
            part = payload["content"][0]
            for index, annotation in enumerate(part["annotations"]):
                yield wire.of_text(
                    "output_text.annotation.added",
                    output_index,
                    item.id,
                    annotation_index=index,
                    annotation=annotation,
                )
            yield wire.of_text("output_text.done", output_index, item.id, text=item.text, logprobs=part["logprobs"])
            yield wire.of_text("content_part.done", output_index, item.id, part=part)
        elif isinstance(item, Reasoning):
            yield wire.of_text("reasoning_text.done", output_index, item.id, text=item.text)
            yield wire.of_text("content_part.done", output_index, item.id, part={**EMPTY_REASONING, "text": item.text})
        elif isinstance(item, ToolListing):
            yield wire.of_item(f"mcp_list_tools.{'failed' if item.error else 'completed'}", output_index, item.id)
        elif isinstance(item, FunctionCall):
            yield from self._end_of_call(output_index, item, payload)
        yield wire.output_item("done", output_index, payload)

    def _end_of_call(self, output_index: int, call: FunctionCall, payload: dict[str, Any]) -> Iterator[WireEvent]:
        sent = self._inputs.pop(output_index, None)
        if _waits(call):
            yield wire.output_item("added", output_index, {**payload, "status": "in_progress"})
        match call.shape.form:
            case "function":
                yield wire.of_item(
                    "function_call_arguments.done",
                    output_index,
                    call.id,
                    name=payload["name"],
                    arguments=call.arguments,
                )
            case "custom":
                if sent and (rest := sent.rest(payload["input"])):
                    yield wire.of_item("custom_tool_call_input.delta", output_index, call.id, delta=rest)
                yield wire.of_item("custom_tool_call_input.done", output_index, call.id, input=payload["input"])
            case "mcp":
                if call.result is None:  # it was cut off, and never runs
                    yield wire.of_item("mcp_call_arguments.done", output_index, call.id, arguments=call.arguments)
                is_done = call.result is not None and not call.result.failed
                yield wire.of_item(f"mcp_call.{'completed' if is_done else 'failed'}", output_index, call.id)
            case "shell":
                for index, command in enumerate(payload["action"]["commands"]):
                    for kind, field, text in (
                        ("added", "command", ""),
                        ("delta", "delta", command),
                        ("done", "command", command),
                    ):
                        event = {"type": f"response.shell_call_command.{kind}", "output_index": output_index}
                        yield {**event, "command_index": index, field: text}


def _delta(event: TextDelta | ReasoningDelta, text: str) -> WireEvent:
    if isinstance(event, ReasoningDelta):
        return wire.of_text("reasoning_text.delta", event.output_index, event.item_id, delta=text)
    told = logprob_payloads(event.logprobs)
    return wire.of_text("output_text.delta", event.output_index, event.item_id, delta=text, logprobs=told)


def _waits(item: Item) -> bool:
    """Whether an item is sent when it is whole: the contract has no empty patch, and nothing to approve without its
    arguments."""
    return isinstance(item, FunctionCall) and item.shape.form in ("apply_patch", "mcp_approval")


def _runs_as(item: Item) -> str | None:
    """What the events of an item that an MCP server makes are called."""
    if isinstance(item, ToolListing):
        return "list_tools"
    return "call" if isinstance(item, FunctionCall) and item.shape.form == "mcp" else None
