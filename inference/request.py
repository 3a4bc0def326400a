"""A request: inside the engine a few fields, everything else derived from them; its side on the event loop; and the one
callback through which the engine's thread updates that."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field

from inference.engine.reasoning_budget import ReasoningBudget
from inference.engine.sampler import Sampler
from inference.errors import EmptyPrompt, InferenceError, TooManyTokens, UnknownToken
from inference.frozen import dataclass
from inference.generation import Delta, DeltaStream, Facts, Finish, Priority, Sampling, Terms, TokenLogprob
from inference.picture import PictureEmbeddings, PictureRange
from inference.prompt import CacheScope
from inference.tokenizer import TextStream

# A prompt row computed alone differs in its last bits from the same row in a batch, so exact requests avoid it.
EXACT_ROWS_MIN = 2
# Requests flushed per callback: with a thousand requests, a new connection waits for about 2 ms instead of 30.
SLICE = 64
# About what the event loop needs for a token. Where it has no core of its own, a step of 16 rows that began before its
# tokens were delivered would take a quarter longer, as threads that meet at barriers wait for the one that was held up.
DELIVERY_S = 1e-4


def room_for(prompt: Sequence[int], sampling: Sampling, terms: Terms, *, context: int, vocabulary: int) -> int:
    """The tokens that an answer may have, what is written of it included. Raises EmptyPrompt, TooManyTokens, and
    UnknownToken for a token that the request names."""
    if not prompt:
        raise EmptyPrompt
    room = context - len(prompt)
    if room < 1 + len(terms.written):
        raise TooManyTokens(len(prompt), context)
    ends = sampling.reasoning_limit.ends if sampling.reasoning_limit else ()
    unknown = next((token for token in (*sampling.logit_bias, *ends) if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise UnknownToken(f"the request names token {unknown}; this model has {vocabulary} tokens")
    return room


@dataclass(slots=True, eq=False)
class Request(Facts):
    """`computed` counts the tokens of prompt + generated whose KV is in the slot; never the newest token.

    A preempted request waits again; the tokens it generated then have to be computed along with its prompt.
    """

    prompt: list[int]
    max_tokens: int  # within what the context leaves
    sampler: Sampler
    text: TextStream
    scope: CacheScope
    priority: Priority = Priority.STANDARD
    slot: int | None = None
    computed: int = 0
    to_prefill: int = 0  # prompt tokens that are neither cached nor prefilled by the current step, for forecasts
    generated: list[int] = field(default_factory=list)
    prediction: Sequence[int] = ()  # tokens that the answer probably repeats
    scores_top: int | None = None  # alternatives with each score of a prompt token; None: no scores
    due_ns: int | None = None  # monotonic; when its first token is due
    pace_s: float | None = None  # longest time between two tokens; None: no limit
    boundaries: Sequence[int] = ()  # of the prompt: where the state of a recurrent model is worth a checkpoint
    pictures: Sequence[PictureRange] = ()  # of the prompt
    embeddings: dict[int, PictureEmbeddings] = field(default_factory=dict)  # of its next pictures, by their starts
    preempted: bool = False  # at least once
    keeps_slot: bool = False  # never preempted: see FLOOR_NS in inference.engine.load
    deadline_ns: int | None = None  # monotonic; ends it then, waiting or running
    cancelled: bool = False
    reasoning: ReasoningBudget | None = None
    finish: Finish | None = None

    def ending(self, now_ns: int) -> Finish | None:
        """Why it must end before the next step, or None."""
        if self.cancelled:
            return Finish.CANCELLED
        late = self.deadline_ns is not None and now_ns >= self.deadline_ns
        return Finish.DEADLINE if late else None

    @property
    def takes_most_likely(self) -> bool:
        """Whether its next token is the most likely one, whatever else holds: then the sampler need not be asked."""
        return self.sampler.takes_most_likely and not (self.reasoning and self.reasoning.interferes)

    def spare_s(self, now_ns: int) -> float:
        """Seconds until the next token of a paced stream is due; negative if it is late."""
        assert self.pace_s is not None
        return len(self.generated) * self.pace_s - (now_ns - self.stamps.first_token_ns) / 1e9

    @property
    def ahead(self) -> bool:
        """Prefills only the prefix of a future prompt: nothing is sampled, and no client waits for it."""
        return self.priority is Priority.AHEAD

    @property
    def exact(self) -> bool:
        """Deterministic: see `batchable` and `reusable`."""
        return self.scope.exact

    @property
    def decodes(self) -> bool:
        """Of a request with a slot: whether only its newest token is left to compute."""
        return bool(self.generated) and len(self.prompt) + len(self.generated) - self.computed == 1

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.generated]

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.prompt) + len(self.generated) - self.computed

    @property
    def uncomputed(self) -> list[int]:
        if self.computed < len(self.prompt):
            return [*self.prompt[self.computed :], *self.generated]
        return self.generated[self.computed - len(self.prompt) :]

    @property
    def batchable(self) -> int:
        """Tokens that may be computed in one batch: up to the next boundary, picture or end of one. An exact request
        that lost its slot recomputes its prompt, then its answer token by token, as it was first computed: in one
        batch, the rows would differ in their last bits."""
        left = len(self.prompt) - self.computed
        whole = self.remaining if not self.exact or not self.generated else max(1, left)
        whole = next((at - self.computed for at in self.boundaries if at > self.computed), whole)
        if (picture := self.next_picture) is None:
            return whole
        return min(whole, (picture.end if picture.start <= self.computed else picture.start) - self.computed)

    @property
    def next_picture(self) -> PictureRange | None:
        """The first picture, or part of one, that is not computed to its end."""
        return next((each for each in self.pictures if each.end > self.computed), None) if self.pictures else None

    @property
    def current_picture(self) -> PictureRange | None:
        """The picture, or part of one, that the next token to compute stands for."""
        picture = self.next_picture
        return picture if picture and picture.start <= self.computed else None

    @property
    def awaits_encoder(self) -> bool:
        """Whether it waits for the embeddings of a picture."""
        picture = self.current_picture
        return picture is not None and picture.start not in self.embeddings

    @property
    def recomputed(self) -> int:
        """Tokens at the end of the prompt that are computed even if they are cached, unless it `begins`: all that have
        to be scored, because the cache has no logits of them."""
        if self.is_unscored:
            return len(self.prompt)
        return EXACT_ROWS_MIN if self.exact else 1

    @property
    def begins(self) -> bool:
        """Whether nothing is wanted of its prompt but the first token behind it."""
        return not (self.generated or self.ahead or self.is_unscored) and self.max_tokens > 0

    @property
    def is_unscored(self) -> bool:
        """Whether tokens of its prompt are still to be scored."""
        return self.scores_top is not None and len(self.scores) < len(self.prompt) - 1

    @property
    def reusable(self) -> list[int]:
        """The tokens whose KV may be reused. Rows of the answer, computed one at a time, differ in their last bits from
        the same tokens computed as prompt, so exact requests leave only their prompt."""
        return self.prompt if self.exact else self.tokens

    @property
    def kept(self) -> list[int]:
        """The reusable tokens that are in the slot."""
        return self.reusable[: self.computed]


@dataclass(frozen=True, slots=True)
class TokenUpdate:
    """The result of one step for one request, on its way to the event loop."""

    handle: Handle
    token: int | None
    text: str
    finish: Finish | None = None
    error: InferenceError | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Handle(DeltaStream):
    """The event loop's side of a request: a `Generation`."""

    def __init__(
        self, request: Request, wake: Callable[[], None], position_of: Callable[[Request], int | None] = lambda _: None
    ) -> None:
        super().__init__(request, len(request.prompt), request.generated)
        self._request = request
        self._wake = wake
        self._position_of = position_of

    @property
    def queue_position(self) -> int | None:
        return self._position_of(self._request)

    @property
    def read_tokens(self) -> int | None:
        request = self._request
        return None if request.slot is None or request.generated or self.finish else request.computed

    async def admitted(self) -> None:
        """Returns immediately: the engine admits or refuses requests when they are submitted."""

    def cancel(self) -> None:
        if self.finish is None:
            self._request.cancelled = True
            self._wake()

    def end_reasoning(self) -> None:
        if self._request.reasoning is not None:
            self._request.reasoning.ending = True

    def take(self, news: TokenUpdate) -> bool:
        """Apply the result of a step. Returns whether the caller has to schedule `flush`."""
        token, text = news.token, news.text
        if token is not None:
            self.ids.append(token)
            self._deltas.append(Delta(text, 1, news.logprobs))
        elif text or news.logprobs:
            self._deltas.append(Delta(text, 0, news.logprobs))
        if news.finish is not None:
            self.finish, self._error = news.finish, news.error or self._error
        due, self._due = self._due, True
        return not due


class Outbox:
    """The results of steps on their way to the event loop: one callback for all pending steps.

    Pending tokens of one request are thereby delivered together, which lets a lagging loop catch up. Requests are
    flushed in slices, between which the loop runs everything else.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._steps: deque[list[TokenUpdate]] = deque()
        self._due: deque[Handle] = deque()
        self._scheduled = False
        self._delivered = threading.Event()
        self._undelivered = self._is_awaited = False

    def publish(self, news: list[TokenUpdate]) -> None:
        """Called on the engine's thread; never blocks. Raises RuntimeError if the event loop is closed."""
        self._steps.append(news)
        self._undelivered = True
        if not self._scheduled:  # else the scheduled callback will take what was appended
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._deliver)

    def await_delivery(self, tokens: int) -> None:
        """Called on the engine's thread: let the event loop have its core until it has delivered what was published,
        or has had the time that so many tokens usually take it."""
        self._delivered.clear()
        self._is_awaited = True
        if self._undelivered:  # the event loop writes this one first and then reads the other
            self._delivered.wait(tokens * DELIVERY_S)
        self._is_awaited = False

    def _deliver(self) -> None:
        self._scheduled = False  # before taking: results published from here on schedule the next callback
        while self._steps:
            self._due += [news.handle for news in self._steps.popleft() if news.handle.take(news)]
        for _ in range(min(SLICE, len(self._due))):
            self._due.popleft().flush()
        if self._due and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._deliver)
        elif not self._due:
            self._undelivered = False
            if self._is_awaited:  # seldom, and an event takes as long as a token
                self._delivered.set()
