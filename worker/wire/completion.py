"""The answers to POST /v1/chat/completions and /v1/completions: choices, complete and as chunks, built from the events
of turns; usage. Pure."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from itertools import accumulate
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from agents.events import (
    ArgumentsDelta,
    Event,
    ItemStarted,
    Queued,
    ReasoningDelta,
    ScoredPrompt,
    TextDelta,
    TurnFinished,
    TurnStarted,
    Usage,
)
from agents.message import FunctionCall, Message, Reasoning, new_id
from agents.payload import logprob_payloads
from inference.frozen import dataclass
from inference.generation import TokenLogprob
from worker.errors import failed
from worker.wire.chat_request import ChatRequest
from worker.wire.completion_request import CompletionRequest
from worker.wire.events import DONE, HOLE, PING_COMMENT, QUEUED, Template, cut, encode_data, waiting
from worker.wire.options import tier_used

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]
Choice: TypeAlias = dict[str, Any]
Chunk: TypeAlias = dict[str, Any]
# A token, its log probability (None: nothing precedes it), and the most likely ones in its place.
Place: TypeAlias = tuple[bytes, float | None, Sequence[tuple[bytes, float]]]
Request = TypeVar("Request", ChatRequest, CompletionRequest)


@dataclass(slots=True)
class ChatChoice:
    """Encodes one choice of a chat. Calls of functions that the client did not offer are left out: it cannot run them.

    Reasoning is sent as `reasoning_content`, the name that servers of open models use. The texts before and behind a
    call that this server ran become one, each on lines of its own; so do several thoughts.
    """

    functions: frozenset[str]
    index: int = 0
    _newest: dict[str, str] = field(default_factory=dict)  # "content" or "reasoning_content" -> the id of its last item
    _calls: dict[str, int] = field(default_factory=dict)  # item id -> index among the shown calls

    def events_of(self, event: Event) -> list[Choice]:
        """The chunks of an event. The end of a turn is encoded by `conclude`."""
        logprobs = event.logprobs if isinstance(event, TextDelta) else ()
        return [self._piece(delta, logprobs=logprobs) for delta in self._deltas(event)]

    def text(self, text: str) -> Choice:
        """The chunk of a text without logprobs."""
        return self._piece({"content": text})

    def conclude(self, finished: TurnFinished) -> Choice:
        """The last chunk: why the choice ended."""
        return {**self._piece({}, self.finish_reason(finished)), **cut(finished)}

    def whole(self, finished: TurnFinished) -> Choice:
        """The choice as one object."""
        texts = [item.text for item in finished.output if isinstance(item, Message) and item.text]
        thoughts = [item.text for item in finished.output if isinstance(item, Reasoning) and item.text]
        calls = self.open_calls(finished)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "\n".join(texts) if texts or not calls else None,
            "refusal": None,
            "annotations": [],
        }
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        return {
            "index": self.index,
            "message": message,
            "finish_reason": self.finish_reason(finished),
            "logprobs": _logprobs(
                [each for item in finished.output if isinstance(item, Message) for each in item.logprobs]
            ),
            **cut(finished),
        }

    def open_calls(self, finished: TurnFinished) -> list[FunctionCall]:
        """Calls that wait for the client."""
        return finished.open_calls(self.functions)

    def finish_reason(self, finished: TurnFinished) -> FinishReason:
        if finished.status == "incomplete":
            return "length"
        return "tool_calls" if self.open_calls(finished) else "stop"

    def _deltas(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case TurnStarted():
                yield {"role": "assistant", "content": ""}
            case TextDelta():
                yield self._grown("content", event)
            case ReasoningDelta():
                yield self._grown("reasoning_content", event)
            case ItemStarted(_, FunctionCall() as call) if call.name in self.functions:
                # The arguments begin in a chunk of their own: some clients drop arguments that come with the name.
                index = self._calls[call.id] = len(self._calls)
                yield {"tool_calls": [{"index": index, **_call(call)}]}
            case ArgumentsDelta() if event.item_id in self._calls:
                yield {"tool_calls": [{"index": self._calls[event.item_id], "function": {"arguments": event.text}}]}

    def _grown(self, name: str, event: TextDelta | ReasoningDelta) -> dict[str, str]:
        goes_on = self._newest.get(name, event.item_id) == event.item_id
        self._newest[name] = event.item_id
        return {name: event.text if goes_on else "\n" + event.text}

    def _piece(
        self, delta: dict[str, Any], finish: FinishReason | None = None, logprobs: Sequence[TokenLogprob] = ()
    ) -> Choice:
        return {"index": self.index, "delta": delta, "finish_reason": finish, "logprobs": _logprobs(logprobs)}


def _call(call: FunctionCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    return {"content": logprob_payloads(logprobs), "refusal": None} if logprobs else None


@dataclass(slots=True)
class TextChoice:
    """Encodes one choice of a text completion. `echo` is the text that precedes it."""

    echo: str
    token_bytes: Callable[[Sequence[int]], Sequence[bytes]]
    index: int
    _told: int = 0  # characters, where log probabilities are wanted

    def events_of(self, event: Event) -> list[Choice]:
        match event:
            case TextDelta():
                told = _logprobs_object(_places_of(event.logprobs), self._told)
                self._told += len(event.text)
                return [self._piece(event.text, told)]
            case TurnStarted() if self.echo:
                return [self._piece(self.echo)]
        return []

    def text(self, text: str) -> Choice:
        """The chunk of a text without logprobs."""
        return self._piece(text)

    def conclude(self, finished: TurnFinished) -> Choice:
        """The last chunk: why the choice ended."""
        return {**self._piece("", finish=self._finish_reason(finished)), **cut(finished)}

    def whole(self, finished: TurnFinished) -> Choice:
        messages = [item for item in finished.output if isinstance(item, Message)]
        text = "".join(message.text for message in messages)
        places = self._places(finished.prompt) if finished.prompt else []
        # What the tokenizer puts in front of a text, such as a mark of its beginning, is not in the echo.
        read = len(b"".join(token for token, _, _ in places).decode("utf-8", "replace"))
        ahead = read - len(self.echo) if places else 0
        places += _places_of([each for message in messages for each in message.logprobs])
        piece = self._piece(self.echo + text, _logprobs_object(places, -ahead), self._finish_reason(finished))
        return {**piece, **cut(finished)}

    def _places(self, prompt: ScoredPrompt) -> list[Place]:
        ids = [*dict.fromkeys([*prompt.ids, *(token for score in prompt.scores for token, _ in score)])]
        names = dict(zip(ids, self.token_bytes(ids), strict=True))
        scores = [[(names[token], logprob) for token, logprob in score] for score in prompt.scores]
        return [(names[prompt.ids[0]], None, ()), *((*own, top) for own, *top in scores)]

    @staticmethod
    def _finish_reason(finished: TurnFinished) -> FinishReason:
        return "length" if finished.status == "incomplete" else "stop"

    def _piece(self, text: str, logprobs: dict[str, Any] | None = None, finish: FinishReason | None = None) -> Choice:
        return {"index": self.index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _places_of(told: Sequence[TokenLogprob]) -> list[Place]:
    return [(each.token, each.logprob, each.top) for each in told]


def _logprobs_object(places: Sequence[Place], offset: int) -> dict[str, Any] | None:
    """`offset` is where the first token begins, in characters of the choice; tokens in front of it begin with it."""
    if not places:
        return None
    decoder = getincrementaldecoder("utf-8")("replace")
    begins = accumulate((len(decoder.decode(token)) for token, _, _ in places[:-1]), initial=offset)
    return {
        "tokens": [_shown(token) for token, _, _ in places],
        "token_logprobs": [logprob for _, logprob, _ in places],
        "top_logprobs": [_top(*place) for place in places],
        "text_offset": [max(0, begin) for begin in begins],
    }


def _top(token: bytes, logprob: float | None, top: Sequence[tuple[bytes, float]]) -> dict[str, float] | None:
    """The most likely tokens, and the token itself. Of several that look the same, the most likely one counts."""
    if logprob is None:
        return None
    named: dict[str, float] = {}
    for each, number in (*top, (token, logprob)):
        named.setdefault(_shown(each), number)
    return named


def _shown(token: bytes) -> str:
    return token.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Completion(ABC, Generic[Request]):
    """One completion, complete or in chunks, which all carry the same id."""

    PING: ClassVar = PING_COMMENT
    WHOLE: ClassVar[str]  # what it is called, and what its chunks are called
    CHUNK: ClassVar[str]

    request: Request
    model: str
    id: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    @abstractmethod
    def choices(self) -> Sequence[ChatChoice | TextChoice]: ...

    @property
    def turns(self) -> int:
        """As many as choices."""
        return self.request.choices

    @property
    def encoders(self) -> Sequence[ChunkEncoder]:
        return [ChunkEncoder(self, choice) for choice in self.choices]

    def chunk(self, choice: Choice | str) -> Chunk:
        """A chunk of one choice, or of what stands for it."""
        chunk = self._frame(self.CHUNK, [choice])
        return {**chunk, "usage": None} if self.request.with_usage else chunk

    def waiting(self, event: Queued) -> Chunk:
        """The chunk for requests in the queue: without choices, like the one with the usage."""
        return {**self._frame(self.CHUNK, []), QUEUED: waiting(event)}

    def closing(self, finished: Sequence[TurnFinished]) -> list[bytes]:
        """What follows the last choice: the usage, for clients that asked for it, and a mark."""
        if not self.request.with_usage:
            return [DONE]
        usage = usage_object(self._used(finished))
        return [encode_data({**self._frame(self.CHUNK, []), "usage": usage}), DONE]

    def whole(self, finished: Sequence[TurnFinished]) -> dict[str, Any]:
        """The completion as one object. The scores of a long prompt take a while."""
        choices = [choice.whole(each) for choice, each in zip(self.choices, finished, strict=True)]
        return {**self._frame(self.WHOLE, choices), "usage": usage_object(self._used(finished))}

    def _used(self, finished: Sequence[TurnFinished]) -> Usage:
        """The choices of one prompt are consecutive, and share it."""
        n = self.request.choices
        return sum((usage_of(finished[at : at + n]) for at in range(0, len(finished), n)), Usage())

    def _frame(self, kind: str, choices: Sequence[Choice | str]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            **self._tier,
            "system_fingerprint": None,
            "choices": list(choices),
        }

    @property
    def _tier(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class ChatCompletion(_Completion[ChatRequest]):
    WHOLE: ClassVar = "chat.completion"
    CHUNK: ClassVar = "chat.completion.chunk"

    id: str = field(default_factory=lambda: new_id("chatcmpl"))

    @property
    def _tier(self) -> dict[str, Any]:
        return {"service_tier": tier_used(self.request.service_tier)}

    @property
    def choices(self) -> list[ChatChoice]:
        return [ChatChoice(self.request.functions_given, index) for index in range(self.turns)]


@dataclass(frozen=True, slots=True)
class TextCompletion(_Completion[CompletionRequest]):
    """`texts` are the prompts; the choices of each are consecutive, as many as the request asks for."""

    WHOLE: ClassVar = "text_completion"
    CHUNK: ClassVar = "text_completion"

    id: str = field(default_factory=lambda: new_id("cmpl"))
    texts: Sequence[str] = ()
    token_bytes: Callable[[Sequence[int]], Sequence[bytes]] = lambda ids: ()  # of tokens of the model

    @property
    def turns(self) -> int:
        return len(self.request.prompts) * self.request.choices

    @property
    def choices(self) -> list[TextChoice]:
        return [TextChoice(self._echo(index), self.token_bytes, index) for index in range(self.turns)]

    def _echo(self, index: int) -> str:
        return self.texts[index // self.request.choices] if self.request.echo else ""


class ChunkEncoder:
    """Encodes one choice as chunks."""

    def __init__(self, completion: _Completion[Any], choice: ChatChoice | TextChoice) -> None:
        self._completion = completion
        self._choice = choice
        self._chunk = Template(encode_data(completion.chunk(HOLE)))
        self._text = Template(self._chunk.filled(choice.text(HOLE)))
        self._open = ""  # the id of the item whose text was last sent

    def frames(self, event: Event) -> list[bytes]:
        if isinstance(event, TextDelta):
            if event.item_id == self._open and not event.logprobs:  # nearly all events
                return [self._text.filled(event.text)]
            self._open = event.item_id
        if isinstance(event, Queued):  # the choices are queued together: one of them reports
            return [] if self._choice.index else [encode_data(self._completion.waiting(event))]
        return [self._chunk.filled(piece) for piece in self._choice.events_of(event)]

    def last(self, finished: TurnFinished) -> list[bytes]:
        if finished.status == "failed":
            return [encode_data(failed(finished.failure).body)]
        return [self._chunk.filled(self._choice.conclude(finished))]


def usage_of(finished: Sequence[TurnFinished]) -> Usage:
    """Choices share one prompt, which counts once, and have an output each."""
    output = sum((replace(each.usage, input_tokens=0, cached_tokens=0, image_tokens=0) for each in finished), Usage())
    first = finished[0].usage
    return output + Usage(first.input_tokens, first.cached_tokens, image_tokens=first.image_tokens)


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0, **usage.image_details},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": usage.predicted.accepted,
            "rejected_prediction_tokens": usage.predicted.rejected,
        },
    }
