"""The vocabulary of generation: what callers request from an engine and what they get back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from inference.frozen import changed, dataclass
from inference.prompt import Miss

if TYPE_CHECKING:  # it imports NumPy
    from inference.grammar.constraint import Constraint


class Priority(IntEnum):
    """Priority classes: a lower class waits for a higher one and yields its slots to it."""

    INTERACTIVE = 0  # a user is waiting
    STANDARD = 1
    BATCH = 2
    AHEAD = 3  # no client waits for it yet: see `LanguageModel.prefill_ahead`


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # end of turn, or of what was asked for
    LENGTH = "length"  # max_tokens, or the context is full
    DEADLINE = "deadline"  # its deadline passed while it waited or was being generated
    CANCELLED = "cancelled"
    ERROR = "error"


class Grammar(Protocol):
    """A grammar that constrains the texts of a turn, or what follows a marker: see `LanguageModel.prepare`."""

    def start(self) -> Constraint: ...


@dataclass(frozen=True, slots=True)
class ReasoningLimit:
    """How the reasoning between two marks is ended: by the tokens `ends` of its closing mark and of what the answer
    begins with, after `tokens` of it, or when the caller says so. `begun`: the prompt ends within it."""

    open: str
    close: str
    ends: tuple[int, ...]
    begun: bool = False
    tokens: int | None = None  # None: no limit


BIAS_MIN = -100.0  # the lowest bias that the API accepts; the logits of one position differ by a few dozen
# Fields of `Sampling` that say how a token is drawn, and what servers of open models call them: so requests spell them,
# those to this server and those to its engines.
DRAWN = {name: name for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")}
DRAWN["repeat_penalty"] = "repetition_penalty"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample the next token. Temperature 0 is greedy.

    `deterministic`: the same prompt and seed give the same tokens whatever else runs. The default seed is then 0.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_k: int = 0  # 0: the whole vocabulary
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    deterministic: bool = False
    ignore_eos: bool = False  # generate up to `max_tokens`: benchmarks need answers of equal length
    top_logprobs: int | None = None  # number of alternatives per token; None: no log probabilities at all
    scores_prompt: bool = False  # log probabilities of the prompt's tokens too, which are then all computed
    grammar: Grammar | None = None
    reasoning_limit: ReasoningLimit | None = None  # None: of a model that does not reason
    open: frozenset[str] = frozenset()  # names of parameters that the model chooses: see `completed`

    def completed(self, usual: Mapping[str, float]) -> Sampling:
        """A copy with the model's usual values of the parameters that were left open."""
        if not self.open:
            return self
        chosen: dict[str, Any] = {name: usual[name] for name in self.open if name in usual}
        return changed(self, **chosen, open=frozenset())

    def at_most(self, tokens: int) -> Sampling:
        """A copy with `max_tokens` limited to `tokens`."""
        return self if self.max_tokens <= tokens else changed(self, max_tokens=tokens)

    def with_logprobs(self, top: int) -> Sampling:
        """A copy with log probabilities of at least `top` alternatives per token."""
        enough = self.top_logprobs is not None and self.top_logprobs >= top
        return self if enough else changed(self, top_logprobs=top)

    def kept_from(self, end_tokens: Iterable[int]) -> Sampling:
        """A copy with the end tokens banned if they are to be ignored.

        A grammar that allows nothing else still takes one.
        """
        if not self.ignore_eos:
            return self
        return changed(self, logit_bias={**self.logit_bias, **dict.fromkeys(end_tokens, BIAS_MIN)})

    def without(self, tokens: Iterable[int]) -> Sampling:
        """A copy with these tokens banned, except those with a bias of their own."""
        return changed(self, logit_bias={**dict.fromkeys(tokens, BIAS_MIN), **self.logit_bias})


@dataclass(frozen=True, slots=True)
class Due:
    """When the first token is due, on the monotonic clock, and the longest time between tokens after that. A request
    that `waits` is admitted however late it will be."""

    at_ns: int | None = None
    waits: bool = False
    pace_s: float | None = None

    @property
    def begun(self) -> Due:
        """What applies after the first token."""
        return Due(pace_s=self.pace_s) if self.pace_s is not None else NO_DEADLINE


NO_DEADLINE = Due()


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms an engine serves a prompt.

    Cached prefixes are only shared within one `salt`, and tenants get fair shares of their priority class. At
    `deadline_ns`, on the monotonic clock, the answer ends with what has been generated. Remote engines get the
    `traceparent` (W3C), so that their spans join the turn's trace. `written` holds the tokens that an answer had when
    its engine was lost: generation resumes behind them as it would have continued there. They count and are part of
    `ids`, but are not streamed again. `prediction` holds the tokens that the answer probably repeats: they are drafted
    where that saves time, and change no answer.
    """

    salt: str = ""
    priority: Priority = Priority.STANDARD
    due: Due = NO_DEADLINE
    deadline_ns: int | None = None
    traceparent: str = ""
    written: Sequence[int] = ()
    prediction: Sequence[int] = ()


ANY_TERMS = Terms()


@dataclass(slots=True)
class Stamps:
    """Monotonic nanoseconds stamped by the engine; 0 means not yet. The layers above turn them into spans."""

    submitted_ns: int = 0
    arrived_ns: int = 0  # in the queue of a remote engine; of an engine in this process, the submission
    admitted_ns: int = 0  # taken into a batch for the first time
    prefilled_ns: int = 0  # last prompt token computed
    first_token_ns: int = 0
    last_token_ns: int = 0


@dataclass(slots=True)
class Steps:
    """Engine steps that a request took part in, and the total number of requests in those steps."""

    count: int = 0
    requests: int = 0

    @property
    def batch(self) -> float:
        """Average batch size, this request included. Raises ZeroDivisionError without steps."""
        return self.requests / self.count


@dataclass(slots=True)
class Hop:
    """A request to a remote engine, on this process's clock; the durations are measured by the engine, None if it does
    not report them. `ending` says why the hop ended before the answer did, if so."""

    engine: str
    begun_ns: int
    taken_ns: int = 0  # the engine accepted the request
    ended_ns: int = 0
    tokens: int = 0
    queue_ms: float | None = None
    prefill_ms: float | None = None
    engine_ms: float | None = None  # from submission there to the last token
    ending: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted time to the first token, from submission: the wait for a slot, and prefill. 95 of 100 requests wait no
    longer than `wait_most_s`."""

    wait_s: float
    prefill_s: float
    wait_most_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.wait_s + self.prefill_s

    @property
    def most_s(self) -> float:
        return max(self.wait_s, self.wait_most_s) + self.prefill_s

    def after(self, seconds: float) -> Forecast:
        """What is left of it so much later, if nothing but time has passed."""
        return changed(self, wait_s=max(0.0, self.wait_s - seconds), wait_most_s=max(0.0, self.wait_most_s - seconds))


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of a token, and of the most likely ones at its position: natural logarithms.

    After bias and penalties; before temperature, truncation and grammar, which only choose among the tokens.
    """

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()

    def with_top(self, count: int) -> TokenLogprob:
        """A copy with at most `count` of the most likely tokens."""
        return self if len(self.top) <= count else changed(self, top=self.top[:count])


Likelihoods: TypeAlias = Sequence[tuple[int, float]]  # a token with its log probability, then the most likely ones


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of generated text (never half a character) and its token count."""

    text: str
    tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()  # of these tokens, if requested
    parts: tuple[Delta, ...] = ()  # the deltas that were merged into it, a token each


# Assumed acceptance before a request's first draft is verified, and the number of tokens that this prior weighs.
PRIOR, PRIOR_TOKENS = 0.7, 4.0
DECAY = 0.95  # weight of the past at each verification: acceptance changes within an answer


@dataclass(slots=True)
class Acceptance:
    """How well drafting works for one request."""

    drafted: int = 0
    accepted: int = 0
    _hits: float = PRIOR * PRIOR_TOKENS
    _looks: float = PRIOR_TOKENS

    @classmethod
    def believed(cls, per_token: float) -> Acceptance:
        """Acceptance of which more is known in advance than the usual prior."""
        return cls(_hits=per_token * PRIOR_TOKENS)

    def observe(self, drafted: int, accepted: int) -> None:
        """Record a verification: the first `accepted` of `drafted` tokens were right, the next one, if any, was not."""
        self.drafted += drafted
        self.accepted += accepted
        self._hits = DECAY * self._hits + accepted
        self._looks = DECAY * self._looks + min(accepted + 1, drafted)

    @property
    def per_token(self) -> float:
        return min(0.99, self._hits / self._looks)


@dataclass(frozen=True, slots=True)
class Predicted:
    """Drafted tokens that the request predicted, by whether the model agreed."""

    accepted: int = 0
    rejected: int = 0

    def __add__(self, other: Predicted) -> Predicted:
        return Predicted(self.accepted + other.accepted, self.rejected + other.rejected)


@dataclass(slots=True)
class Spent:
    """Engine time that a request used: its share of each step, in proportion to its rows.

    `speculation_ns` is the part of it that speculation cost without a gain: drafting, and the rows of rejected draft
    tokens. `sight_ns` is the time of the encoder of pictures, beside the engine's.
    """

    engine_ns: int = 0
    speculation_ns: int = 0
    sight_ns: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.engine_ns + other.engine_ns,
            self.speculation_ns + other.speculation_ns,
            self.sight_ns + other.sight_ns,
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Facts:
    """What is known of a generation. They grow while it runs; an engine that does not report one leaves it as it is."""

    stamps: Stamps = field(default_factory=Stamps)
    forecast: Forecast | None = None  # of the first token, at submission; None if too little had been measured
    cached_tokens: int = 0  # of the prompt, whose KV was reused; known once admitted
    miss: Miss | None = None  # what the cache lacked; known once admitted
    scores: list[Likelihoods] = field(default_factory=list)  # of each prompt token but the first, if requested
    acceptance: Acceptance = field(default_factory=Acceptance)
    predicted: Predicted = field(default_factory=Predicted)
    prefill_steps: Steps = field(default_factory=Steps)  # up to that of the last token of the prompt
    decode_steps: Steps = field(default_factory=Steps)
    spent: Spent = field(default_factory=Spent)  # so far
    hops: list[Hop] = field(default_factory=list)  # the remote engines that were tried, in order


class Generation(Protocol):
    """A running generation: `stream` its deltas, cancel at any time; `ids` are valid as they grow.

    Leaving `stream` early does not cancel: the caller calls `cancel()` in `finally` (cancelling a finished generation
    does nothing).
    """

    prompt_tokens: int
    facts: Facts
    ids: list[int]  # generated token ids, without the end-of-turn token; `written` ones come first
    finish: Finish | None

    @property
    def queue_position(self) -> int | None:
        """Position in the queue, from 1; None if it does not wait or the position is unknown."""

    @property
    def read_tokens(self) -> int | None:
        """Tokens of the prompt that are computed, or were cached; None unless it is being read, or if unknown."""

    async def admitted(self) -> None:
        """Return once an engine has accepted the request; a refusal is raised here, if not by `generate`.

        Raises InferenceError.
        """

    async def stream(self, receive: Callable[[Delta], None]) -> None:
        """Call `receive` with every delta, in the same iteration of the event loop in which the step's tokens arrive;
        return once `finish` is set. Pending deltas are merged into one.

        Raises InferenceError if the engine fails, and whatever `receive` raises.
        """

    def cancel(self) -> None: ...

    def end_reasoning(self) -> None:
        """End the reasoning that runs, and all that follows, at the next token; without effect if an engine cannot."""


class DeltaStream:
    """Base class of all generations. Used on the event loop only.

    Deltas are pushed to the receiver of `stream`; without one they are queued, and can be iterated over.
    """

    def __init__(self, facts: Facts, prompt_tokens: int, written: Sequence[int]) -> None:
        self.facts, self.prompt_tokens = facts, prompt_tokens
        self._deltas: deque[Delta] = deque()
        self._receive: Callable[[Delta], None] | None = None
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._due = False  # a call of `flush` is scheduled
        self.ids = list(written)
        self.finish: Finish | None = None

    async def stream(self, receive: Callable[[Delta], None]) -> None:
        self._receive = receive
        try:
            self.flush()
            while self.finish is None and self._error is None:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._receive = None
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while True:
            while self._deltas:
                yield self._deltas.popleft()
            if self._error is not None:
                raise self._error
            if self.finish is not None:
                return
            self._changed.clear()
            await self._changed.wait()

    def flush(self) -> None:
        """Push the queued deltas as one."""
        self._due = False
        if self._receive is not None and self._deltas and self._error is None:
            delta = self._deltas.popleft()
            if self._deltas:
                delta = joined(delta, *self._deltas)
                self._deltas.clear()
            try:
                self._receive(delta)
            except Exception as error:  # raised in the coroutine that streams, not in the caller
                self._error = error
        if self._receive is None or self.finish is not None or self._error is not None:
            self._changed.set()


def joined(*deltas: Delta) -> Delta:
    """Merge consecutive deltas."""
    logprobs = tuple(logprob for delta in deltas for logprob in delta.logprobs)
    return Delta("".join([delta.text for delta in deltas]), sum(delta.tokens for delta in deltas), logprobs, deltas)
