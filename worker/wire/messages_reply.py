"""The answer to a message, complete and as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import orjson

from agents.events import (
    ArgumentsDelta,
    Event,
    ItemFinished,
    ItemStarted,
    Queued,
    ReasoningDelta,
    TextDelta,
    TurnFinished,
    TurnStarted,
    Usage,
)
from agents.function_tool import CallShape, bare
from agents.message import (
    CallResult,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Status,
    ToolListing,
    new_id,
)
from worker.errors import failed
from worker.wire.events import HOLE, QUEUED, Template, cut, encode, waiting
from worker.wire.messages_request import MessagesRequest
from worker.wire.messages_tools import ERROR

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
Block: TypeAlias = dict[str, Any]
PING = encode({"type": "ping"})


@dataclass(frozen=True, slots=True)
class Reply:
    """Calls of functions that the client did not offer are left out: nobody could run them. `diagnose` returns the
    diagnostics, from the first token on, if they are asked for."""

    PING: ClassVar = PING

    request: MessagesRequest
    model: str
    id: str = field(default_factory=lambda: new_id("msg"))
    diagnose: Callable[[], dict[str, Any] | None] | None = None

    @property
    def turns(self) -> int:
        return 1

    @property
    def encoders(self) -> list[MessageEventEncoder]:
        return [MessageEventEncoder(self)]

    def closing(self, _: Sequence[TurnFinished]) -> list[bytes]:
        """Nothing follows the end of the turn."""
        return []

    @property
    def functions(self) -> frozenset[str]:
        return self.request.functions_given

    def started(self, prompt_tokens: int) -> dict[str, Any]:
        """The cached part of the prompt is not known yet: the final event has it."""
        return self._message([], None, None, Usage(prompt_tokens))

    def whole(self, finished: Sequence[TurnFinished]) -> dict[str, Any]:
        [turn] = finished
        blocks = [block for item in _as_streamed(turn.output) if (block := self._block(item)) is not None]
        reason = self.stop_reason(turn)
        return {**self._message(blocks, reason, self.stop_sequence(turn), turn.usage), **cut(turn)}

    def stop_reason(self, finished: TurnFinished) -> StopReason:
        if finished.status == "incomplete":
            return "max_tokens"
        if finished.open_calls(self.functions):
            return "tool_use"
        return "end_turn" if finished.stop_string is None else "stop_sequence"

    def stop_sequence(self, finished: TurnFinished) -> str | None:
        return finished.stop_string if self.stop_reason(finished) == "stop_sequence" else None

    def empty(self, item: Item) -> Block | None:
        """The empty block that opens an item; None for an item that is not shown."""
        match item:
            case Message(role="assistant"):
                return {"type": "text", "text": "", "citations": None}
            case Reasoning():
                return {"type": "thinking", "thinking": "", "signature": ""}
            case FunctionCall() if item.name in self.functions:
                return {"type": "tool_use", "id": item.call_id, "name": item.name, "input": {}}
            case FunctionCall(shape=CallShape("mcp", label)):
                use = {"type": "mcp_tool_use", "id": item.call_id, "name": bare(label, item.name)}
                return {**use, "server_name": label, "input": {}}
            case FunctionCall(shape=CallShape("tool_search")):
                return {"type": "server_tool_use", "id": item.call_id, "name": item.name, "input": {}}
        return None

    def _block(self, item: Item) -> Block | None:
        """A call that was cut off or cannot be parsed has no arguments: it is left out."""
        block = self.empty(item)
        match item:
            case Message():
                return block and {**block, "text": item.text} if item.text else None
            case Reasoning():
                shown = item.text if self.request.shows_thoughts else ""
                return block and {**block, "thinking": shown, "signature": item.id}
            case FunctionCall():
                arguments = _arguments(item)
                return block and {**block, "input": arguments} if arguments is not None else None
            case FunctionCallOutput():
                return self.result(item)
            case ToolListing():
                return self.listing(item)
        return None

    @staticmethod
    def listing(item: ToolListing) -> Block:
        """Clients send it back, so that the server is not asked for its tools again."""
        kept = ("name", "description", "input_schema")
        tools = [{key: tool[key] for key in kept} for tool in item.tools]
        return {"type": "mcp_tool_listing", "mcp_server_name": item.label, "tools": tools}

    @staticmethod
    def result(item: FunctionCallOutput) -> Block | None:
        """The block of a search that this server ran, or of a call of an MCP server; None for the results of its other
        tools, which are not shown."""
        if item.shape.form == "mcp":
            told = {"type": "mcp_tool_result", "tool_use_id": item.call_id, "is_error": item.status == "failed"}
            return {**told, "content": [{"type": "text", "text": item.output, "citations": None}]}
        if item.shape.form != "tool_search":
            return None
        found = [{"type": "tool_reference", "tool_name": tool.name} for tool in item.tools]
        content: Block = {"type": "tool_search_tool_search_result", "tool_references": found}
        if not found and item.output.startswith(ERROR):
            content = {"type": "tool_search_tool_result_error", "error_code": "invalid_tool_input"}
            content["error_message"] = item.output
        return {"type": "tool_search_tool_result", "tool_use_id": item.call_id, "content": content}

    def _message(
        self, content: list[Block], reason: StopReason | None, stop_sequence: str | None, usage: Usage
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop_sequence,
            "usage": usage_object(usage),
            **({"diagnostics": self.diagnose()} if self.diagnose else {}),
        }


class MessageEventEncoder:
    """Encodes a reply as events. Blocks are consecutive, so at most one is open at a time."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._index = -1  # of the newest block
        self._open: str | None = None  # the id of its item
        self._delta: Template | None = None  # of the open block
        self._held: TurnStarted | None = None  # until its diagnostics are known

    def frames(self, event: Event) -> list[bytes]:
        if isinstance(event, TurnStarted) and self._reply.diagnose:
            self._held = event
            return []
        frames = self._frames(event)
        return frames if isinstance(event, Queued) else self._behind_start(frames)

    def _behind_start(self, frames: list[bytes]) -> list[bytes]:
        if self._held is None or not frames:
            return frames
        held, self._held = self._held, None
        return [*self._frames(held), *frames]

    def _frames(self, event: Event) -> list[bytes]:
        match event:
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                begun = [] if event.item_id == self._open else self._begun(event)
                return [*begun, self._delta.filled(event.text)] if self._delta and event.text else begun
            case TurnStarted():
                message = self._reply.started(event.prompt_tokens)
                return [encode({"type": "message_start", "message": message}), PING]
            case Queued():  # a ping may be sent at any time, and may have more fields
                return [encode({"type": "ping", QUEUED: waiting(event)})]
            case ItemFinished(item=FunctionCall() as call) if call.result is not None:
                return self._whole(self._reply.result(_result_of(call, call.result)))
            case ItemFinished(item=FunctionCallOutput() as item):
                return self._whole(self._reply.result(item))
            case ItemFinished(item=ToolListing() as item):
                return self._whole(self._reply.listing(item))
            case ItemStarted() if not isinstance(event.item, Message):  # a text may stay empty, which clients reject
                return self._start(event.item)
            case ItemFinished() if event.item.id == self._open:
                return self._stop(event.item)
        return []

    def last(self, finished: TurnFinished) -> list[bytes]:
        if finished.status == "failed":
            error = failed(finished.failure)
            kind = "api_error" if error.status >= 500 else error.type
            return [encode({"type": "error", "error": {**error.body["error"], "type": kind}})]
        reply = self._reply
        delta = {"stop_reason": reply.stop_reason(finished), "stop_sequence": reply.stop_sequence(finished)}
        end = {"type": "message_delta", "delta": delta, "usage": usage_object(finished.usage), **cut(finished)}
        return self._behind_start([encode(end), encode({"type": "message_stop"})])

    def _begun(self, event: TextDelta | ReasoningDelta | ArgumentsDelta) -> list[bytes]:
        """The block of a text begins with its first piece. Pieces of items that are not shown have none."""
        self._delta = None
        return self._start(Message("assistant", "", id=event.item_id)) if isinstance(event, TextDelta) else []

    def _start(self, item: Item) -> list[bytes]:
        block = self._reply.empty(item)
        self._open, self._delta = None, None
        if block is None:
            return []
        self._index, self._open = self._index + 1, item.id
        if not isinstance(item, Reasoning) or self._reply.request.shows_thoughts:
            self._delta = Template(encode(self._event("content_block_delta", delta=_hole(item))))
        return [encode(self._event("content_block_start", content_block=block))]

    def _whole(self, block: Block | None) -> list[bytes]:
        """A block that is sent at once."""
        if block is None:
            return []
        self._index += 1
        start = encode(self._event("content_block_start", content_block=block))
        return [start, encode(self._event("content_block_stop"))]

    def _stop(self, item: Item) -> list[bytes]:
        self._open, self._delta = None, None
        stop = encode(self._event("content_block_stop"))
        if not isinstance(item, Reasoning):
            return [stop]
        signature = {"type": "signature_delta", "signature": item.id}
        return [encode(self._event("content_block_delta", delta=signature)), stop]

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "index": self._index, **more}


def _as_streamed(items: Iterable[Item]) -> Iterator[Item]:
    """The items in the order in which they are streamed: the results of MCP calls follow the calls of their step."""
    results: list[Item] = []
    for item in items:
        if not (isinstance(item, FunctionCall) and item.joined):
            yield from results
            results = []
        yield item
        if isinstance(item, FunctionCall) and item.result is not None:
            results.append(_result_of(item, item.result))
    yield from results


def _result_of(call: FunctionCall, result: CallResult) -> FunctionCallOutput:
    status: Status = "failed" if result.failed else "completed"
    return FunctionCallOutput(call.call_id, result.output, status, shape=call.shape)


def _hole(item: Item) -> dict[str, str]:
    match item:
        case Reasoning():
            return {"type": "thinking_delta", "thinking": HOLE}
        case FunctionCall():
            return {"type": "input_json_delta", "partial_json": HOLE}
    return {"type": "text_delta", "text": HOLE}


def _arguments(call: FunctionCall) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(call.arguments) if call.status == "completed" else None
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def usage_object(usage: Usage) -> dict[str, Any]:
    """In this API, the input tokens do not include the cached ones."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }
