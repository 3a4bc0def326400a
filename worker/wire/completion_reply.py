"""A text completion, complete and in chunks. Pure."""

from __future__ import annotations

import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

from agents.events import Event, Queued, ScoredPrompt, TextDelta, TurnFinished, TurnStarted, Usage
from agents.message import Message, new_id
from inference.generation import TokenLogprob
from worker.wire import sse
from worker.wire.chat_completion import failure, usage_object, usage_of
from worker.wire.completion_request import CompletionRequest
from worker.wire.events import QUEUED, cut, waiting
from worker.wire.options import ServiceTier

# A token, its log probability (None: nothing precedes it), and the most likely ones in its place.
Place: TypeAlias = tuple[bytes, float | None, Sequence[tuple[bytes, float]]]


@dataclass(frozen=True, slots=True)
class TextCompletion:
    """`texts` are the prompts; the choices of each are consecutive, as many as the request asks for."""

    request: CompletionRequest
    model: str
    texts: Sequence[str] = ()
    token_bytes: Callable[[Sequence[int]], Sequence[bytes]] = lambda ids: ()  # of tokens of the model
    id: str = field(default_factory=lambda: new_id("cmpl"))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def metadata(self) -> Mapping[str, str] | None:
        return self.request.metadata

    @property
    def service_tier(self) -> ServiceTier | None:
        return None  # not part of this API

    def echo(self, index: int) -> str:
        """The text that precedes a choice."""
        return self.texts[index // self.request.choices] if self.request.echo else ""

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = self._frame([choice])
        return {**chunk, "usage": None} if self.request.with_usage else chunk

    def waiting(self, event: Queued) -> dict[str, Any]:
        """The chunk for requests in the queue: without choices, like the one with the usage."""
        return {**self._frame([]), QUEUED: waiting(event)}

    def usage(self, finished: Sequence[TurnFinished]) -> list[dict[str, Any]]:
        """The last chunk, for clients that asked for the usage."""
        return [{**self._frame([]), "usage": usage_object(self._used(finished))}] if self.request.with_usage else []

    def whole(self, finished: Sequence[TurnFinished]) -> dict[str, Any]:
        choices = [self._choice(index, each) for index, each in enumerate(finished)]
        return {**self._frame(choices), "usage": usage_object(self._used(finished))}

    def _choice(self, index: int, finished: TurnFinished) -> dict[str, Any]:
        messages = [item for item in finished.output if isinstance(item, Message)]
        echo, text = self.echo(index), "".join(message.text for message in messages)
        places = self._places(finished.prompt) if finished.prompt else []
        # What the tokenizer puts in front of a text, such as a mark of its beginning, is not in the echo.
        ahead = len(b"".join(token for token, _, _ in places).decode("utf-8", "replace")) - len(echo) if places else 0
        places += places_of([each for message in messages for each in message.logprobs])
        logprobs = logprobs_object(places, -ahead)
        return {**choice(index, echo + text, logprobs, finish_reason(finished)), **cut(finished)}

    def _places(self, prompt: ScoredPrompt) -> list[Place]:
        ids = [*dict.fromkeys([*prompt.ids, *(token for score in prompt.scores for token, _ in score)])]
        names = dict(zip(ids, self.token_bytes(ids), strict=True))
        scores = [[(names[token], logprob) for token, logprob in score] for score in prompt.scores]
        return [(names[prompt.ids[0]], None, ()), *((*own, top) for own, *top in scores)]

    def _used(self, finished: Sequence[TurnFinished]) -> Usage:
        """The choices of one prompt share it."""
        n = self.request.choices
        return sum((usage_of(finished[at : at + n]) for at in range(0, len(finished), n)), Usage())

    def _frame(self, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            "choices": list(choices),
        }


class TextChunkEncoder:
    """Encodes one choice as chunks."""

    def __init__(self, completion: TextCompletion, index: int) -> None:
        self._completion = completion
        self._index = index
        self._told = 0  # characters of the choice
        self._text = sse.Template(self._frame(choice(index, sse.HOLE)))

    def frames(self, event: Event) -> list[bytes]:
        match event:
            case TextDelta(text=text, logprobs=()):
                return [self._text.filled(text)]
            case TextDelta():
                told = logprobs_object(places_of(event.logprobs), self._told)
                self._told += len(event.text)
                return [self._frame(choice(self._index, event.text, told))]
            case Queued():  # the choices are queued together: one of them reports
                return [] if self._index else [sse.encode_data(self._completion.waiting(event))]
            case TurnStarted() if echoed := self._completion.echo(self._index):
                return [self._text.filled(echoed)]
        return []

    def last(self, finished: TurnFinished) -> list[bytes]:
        if finished.status == "failed":
            return [sse.encode_data({"error": failure(finished)})]
        return [self._frame({**choice(self._index, "", finish=finish_reason(finished)), **cut(finished)})]

    def _frame(self, choice: dict[str, Any]) -> bytes:
        return sse.encode_data(self._completion.chunk(choice))


def choice(index: int, text: str, logprobs: dict[str, Any] | None = None, finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def finish_reason(finished: TurnFinished) -> str:
    return "length" if finished.status == "incomplete" else "stop"


def places_of(told: Sequence[TokenLogprob]) -> list[Place]:
    return [(each.token, each.logprob, each.top) for each in told]


def logprobs_object(places: Sequence[Place], offset: int = 0) -> dict[str, Any] | None:
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
