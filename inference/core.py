"""The vocabulary of generation: what is requested from the model and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple, Protocol

from inference.grammar.constraint import Constraint
from inference.template_options import NO_OPTIONS, Value

# Acceptance of a request before its first draft is verified, and the number of tokens that this estimate weighs.
PRIOR, PRIOR_TOKENS = 0.7, 4.0
DECAY = 0.95  # weight of the past at each verification: acceptance changes within an answer


class Part(StrEnum):
    """What a piece of prompt is there for, in the usual order."""

    SYSTEM = "system"
    TOOLS = "tools"  # their schemas
    HISTORY = "history"  # messages before the question
    PASSAGES = "passages"
    QUESTION = "question"  # the newest user message
    RESULTS = "results"  # what the running turn has called and found out since


@dataclass(frozen=True, slots=True)
class Extent:
    """That many consecutive tokens of a prompt belong to this part."""

    part: Part
    tokens: int


class Priority(IntEnum):
    """Classes of requests: a lower one waits for the higher, and gives its slot up to it."""

    INTERACTIVE = 0  # a user is waiting
    STANDARD = 1
    BATCH = 2
    AHEAD = 3  # no client waits for it yet: see `LanguageModel.prefill_ahead`


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # end of turn or a stop string
    LENGTH = "length"  # max_tokens, or the context is full
    DEADLINE = "deadline"  # its time was over, while it waited or while it was written
    CANCELLED = "cancelled"
    ERROR = "error"


class Grammar(Protocol):
    """The grammar that constrains the texts of a turn, or what follows a mark: see `LanguageModel.prepare`."""

    def start(self) -> Constraint: ...


BIAS_MIN = -100.0  # the least bias that the wire has; logits of one position are some tens apart


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to pick the next token. Temperature 0 is greedy. `stop` strings never reach the text.

    `deterministic`: the same prompt and seed give the same tokens whatever else runs. Without a seed, 0 is taken.
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
    stop: tuple[str, ...] = ()
    deterministic: bool = False
    ignore_eos: bool = False  # goes on to `max_tokens`: benchmarks want answers of one length
    top_logprobs: int | None = None  # number of alternatives per token; None: no log probabilities at all
    grammar: Grammar | None = None

    def at_most(self, tokens: int) -> Sampling:
        """The same for an answer of at most so many tokens."""
        return self if self.max_tokens <= tokens else replace(self, max_tokens=tokens)

    def with_logprobs(self, top: int) -> Sampling:
        """The same, with the log probabilities of at least so many alternatives per token."""
        enough = self.top_logprobs is not None and self.top_logprobs >= top
        return self if enough else replace(self, top_logprobs=top)

    def kept_from(self, end_tokens: Iterable[int]) -> Sampling:
        """The same, with the tokens that end an answer out of reach if they are to be ignored.

        A grammar that leaves nothing else still takes one.
        """
        if not self.ignore_eos:
            return self
        return replace(self, logit_bias={**self.logit_bias, **dict.fromkeys(end_tokens, BIAS_MIN)})

    def without(self, tokens: Iterable[int]) -> Sampling:
        """The same, with these tokens out of reach, but for those that have a bias of their own."""
        return replace(self, logit_bias={**dict.fromkeys(tokens, BIAS_MIN), **self.logit_bias})


@dataclass(frozen=True, slots=True)
class Due:
    """When the first token is due, on the monotonic clock, and the longest time between two that follow. One that
    `waits` is taken however late it will be."""

    at_ns: int | None = None
    waits: bool = False
    pace_s: float | None = None

    @property
    def begun(self) -> Due:
        """For what comes after the first token."""
        return Due(pace_s=self.pace_s) if self.pace_s is not None else NO_DEADLINE


NO_DEADLINE = Due()


@dataclass(slots=True)
class Stamps:
    """Monotonic nanoseconds stamped by the engine; 0 is 'not yet'. The layers above make spans of them."""

    submitted_ns: int = 0
    arrived_ns: int = 0  # in the queue of an engine elsewhere; of one in this process, it is the submission
    admitted_ns: int = 0  # taken into a batch for the first time
    prefilled_ns: int = 0  # last prompt token computed
    first_token_ns: int = 0
    last_token_ns: int = 0


@dataclass(slots=True)
class Steps:
    """Steps of the engine that a request was in, and how many requests were in those altogether."""

    count: int = 0
    requests: int = 0

    @property
    def batch(self) -> float:
        """Requests in a step on average, this one among them. Raises ZeroDivisionError without steps."""
        return self.requests / self.count


@dataclass(slots=True)
class Hop:
    """A request to an engine elsewhere, on the clock of this process; the durations are the engine's own, None where it
    does not tell them. `ending` is why the hop ended before the answer, if so."""

    engine: str
    begun_ns: int
    taken_ns: int = 0  # it said that it takes the request
    ended_ns: int = 0
    tokens: int = 0
    queue_ms: float | None = None
    prefill_ms: float | None = None
    engine_ms: float | None = None  # from its submission there to its last token
    ending: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the first token is expected, from the submission on: the wait for a slot, and reading the prompt. 95
    of 100 wait no longer than `wait_most_s`."""

    wait_s: float
    read_s: float
    wait_most_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.wait_s + self.read_s

    @property
    def most_s(self) -> float:
        return max(self.wait_s, self.wait_most_s) + self.read_s

    def after(self, seconds: float) -> Forecast:
        """What is left of it so much later, if nothing but time has passed."""
        return replace(self, wait_s=max(0.0, self.wait_s - seconds), wait_most_s=max(0.0, self.wait_most_s - seconds))


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model found a token, and the most likely ones at its place: natural logarithms.

    After bias and penalties; before temperature, truncation and grammar, which only choose among the tokens.
    """

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()

    def with_top(self, count: int) -> TokenLogprob:
        """The same, with at most so many of the most likely ones."""
        return self if len(self.top) <= count else replace(self, top=self.top[:count])


class Delta(NamedTuple):
    """A piece of generated text (never half a character, never part of a stop string) and its token count.

    A tuple, because one is made for every token: that costs a third of a frozen dataclass.
    """

    text: str
    tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()  # of these tokens, where the request wants them


@dataclass(slots=True)
class Acceptance:
    """How well the draft does for one request."""

    drafted: int = 0
    accepted: int = 0
    _hits: float = PRIOR * PRIOR_TOKENS
    _looks: float = PRIOR_TOKENS

    def observe(self, drafted: int, accepted: int) -> None:
        """A verification: the first `accepted` of `drafted` tokens were right, the next one, if any, was not."""
        self.drafted += drafted
        self.accepted += accepted
        self._hits = DECAY * self._hits + accepted
        self._looks = DECAY * self._looks + min(accepted + 1, drafted)

    @property
    def per_token(self) -> float:
        return min(0.99, self._hits / self._looks)


@dataclass(slots=True)
class Spent:
    """What a request took of the engine: of each step the share that its rows had in it.

    `speculation_ns` is the part of it that drafts took and did not pay back: making them, and the rows of those that
    the model did not agree with.
    """

    engine_ns: int = 0
    speculation_ns: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.engine_ns + other.engine_ns, self.speculation_ns + other.speculation_ns)


@dataclass(frozen=True, slots=True)
class Miss:
    """What the cache knew of a prompt. Behind the reused tokens the prompt has `wanted`, and the entry closest to it
    `held`: a few tokens of each. `held` is empty where that entry ends."""

    cached: int
    seen: int = 0  # tokens at the start that were read at some time, in blocks
    wanted: tuple[int, ...] = ()
    held: tuple[int, ...] = ()


class Cause(StrEnum):
    """Why the first new token is new."""

    FIRST_USE = "first_use"  # this tenant never sent it before
    EDITED = "edited"  # what was here before is another text
    EVICTED = "evicted"  # it was in the cache and had to leave
    RETOKENISED = "retokenised"  # the same text, cut into other tokens


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cached` of `tokens` prompt tokens were reused. No segment and no cause when all but the last one were: that one
    is always computed."""

    cached: int
    tokens: int
    segment: Part | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class CacheScope:
    """Prompts share cached prefixes within one scope only: those of one tenant that are computed the same way.

    `exact` requests compute theirs in their own way, see `Request.batchable` and `Request.reusable`, so their cache is
    their own too. Prefixes that hold nothing of any tenant are shared beyond it: see `kvcache.shared_prefixes`.
    """

    tenant: str
    exact: bool = False


class Generation(Protocol):
    """A running generation: `stream` its deltas, cancel at any time; the rest is valid as it grows.

    Leaving `stream` early does not cancel: the caller calls `cancel()` in `finally` (cancelling a finished generation
    does nothing).
    """

    stamps: Stamps
    ids: list[int]  # generated token ids, without the end-of-turn token; from the first that was `written` on
    finish: Finish | None

    @property
    def forecast(self) -> Forecast | None:
        """Of its first token, when it was submitted; None while too little was learned."""
        ...

    @property
    def place(self) -> int | None:
        """Among those that wait, 1 for the next one; None for one that does not wait, and where that is not known."""
        ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose KV was reused; known once admitted."""
        ...

    @property
    def miss(self) -> Miss | None:
        """What the cache lacked; known once admitted."""
        ...

    @property
    def drafted(self) -> int:
        """Tokens that were proposed for the answer."""
        ...

    @property
    def accepted(self) -> int:
        """Drafted tokens that became part of the answer."""
        ...

    @property
    def reading(self) -> Steps:
        """In which the prompt was computed; without any where the engine does not tell."""
        ...

    @property
    def writing(self) -> Steps:
        """In which the answer was computed; without any where the engine does not tell."""
        ...

    @property
    def spent(self) -> Spent:
        """Of the engine's time so far; nothing where the engine does not tell."""
        ...

    @property
    def stop_string(self) -> str | None:
        """The string of `Sampling.stop` that ended it; known once it has finished."""
        ...

    @property
    def hops(self) -> Sequence[Hop]:
        """The engines elsewhere that were asked, in this order; none where the engine is in this process."""
        ...

    async def admitted(self) -> None:
        """Return when an engine has taken the request: what refuses it is raised here, if not by `generate`.

        Raises InferenceError.
        """
        ...

    async def stream(self, receive: Callable[[Delta], None]) -> None:
        """Call `receive` with every delta, in the same turn of the event loop in which the step's tokens reach it;
        return when `finish` is set. Deltas that wait together come as one.

        Raises InferenceError when the engine fails, and what `receive` raises.
        """
        ...

    def cancel(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the chat template wants it; `arguments` is the JSON text as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message as the chat template sees it. Content is untrusted text: it never becomes special tokens.

    Its first `passage_chars` characters are passages that were found, not said by the role.
    """

    role: str  # system | user | assistant | tool
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""  # what came before it; the template decides whether the model sees it again
    passage_chars: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of rendered prompt. Special tokens are recognised only where `trusted` is true.

    `ids`, when present, are the exact tokens of this piece (a turn that this model generated). The first
    `passage_chars` characters belong to the part PASSAGES, the others to `part`.
    """

    text: str
    trusted: bool
    ids: tuple[int, ...] | None = None
    part: Part = Part.HISTORY
    passage_chars: int = 0


class LanguageModel(Protocol):
    """What the agent loop needs of a chat model; `inference.model.ChatModel` is the real one.

    `salt` names the tenant everywhere: what is kept of one is used for no other.
    """

    name: str
    context_length: int
    chat_template: str  # its text determines the format of tool calls
    shares_turns: bool  # whether other workers may know turns of its conversations that this one does not
    measures: Mapping[str, int]  # of the file, by the names of llama.cpp: n_ctx_train, n_params, n_vocab, n_embd, size

    @property
    def switches(self) -> frozenset[str]:
        """Variables of the chat template that a request may set: see `inference.template_options`."""
        ...

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] = (),
        switches: Mapping[str, Value] = NO_OPTIONS,
        *,
        salt: str = "",
    ) -> list[Segment]:
        """Apply the chat template. `tools` are OpenAI function tools: {"type":"function","function":{...}}."""
        ...

    def encode(self, segments: Sequence[Segment], *, salt: str = "") -> list[int]:
        """Raises TextTooLong for what need not be tokenised to see that."""
        ...

    def count(self, text: str, *, salt: str = "") -> int:
        """Number of tokens of untrusted text; of one that cannot fit the context, any number above it."""
        ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of a text by itself, which are not kept. `add_special`: with the tokens that the model wants at both
        ends; `parse_special`: marks of control tokens become these. Thread-safe."""
        ...

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token; control tokens by their marks. Raises UnknownToken."""
        ...

    def text_pieces(self, ids: Sequence[int], stop: Sequence[str] = (), *, over: bool = False) -> list[str]:
        """The text that an answer of these tokens has told with each of them; `over`: with what was told at its end.
        Raises UnknownToken."""
        ...

    def infill(self, before: str, behind: str) -> list[Segment] | None:
        """The prompt for what goes between two texts; None for a model that was not trained to fill in."""
        ...

    def verdict(self, segments: Sequence[Segment], generation: Generation, *, salt: str = "") -> Verdict | None:
        """Why the prompt had to be read as far as it was; None before the generation was admitted."""
        ...

    def prepare(self, grammar: str, begins: str = "") -> Grammar | None:
        """Compile a grammar (see `inference.grammar`) for texts that follow each other. Takes milliseconds;
        thread-safe.

        The mark `begins` frees the text before it: the grammar only helps then, and is dropped where it is too much
        or leads nowhere; None where the mark is no single token. Raises InvalidSchema.
        """
        ...

    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        salt: str = "",
        priority: Priority = Priority.STANDARD,
        due: Due = NO_DEADLINE,
        deadline_ns: int | None = None,
        traceparent: str = "",
        written: Sequence[int] = (),
    ) -> Generation:
        """Submit a prompt. Cached prefixes are only shared within one salt, and tenants of one priority get fair
        shares. At `deadline_ns`, on the monotonic clock, it ends with what there is. `traceparent` (W3C) is for
        engines elsewhere, whose spans become part of the turn's trace. Behind `written`, the tokens that an answer had
        when whoever computed it was lost, it goes on as that would have: they count and stand in `ids`, and are not
        told again.

        Raises PromptTooLong, QueueFull, Late, EngineStopped, here or when its admission is waited for.
        """
        ...

    def expect(self, due: Due, *, salt: str = "", priority: Priority = Priority.STANDARD) -> None:
        """Raises Late if not even the shortest prompt could be answered in time, so that nothing is done for one in
        vain."""
        ...

    def prefill_ahead(self, prompt: Sequence[int], *, salt: str = "", exact: bool = False) -> Generation | None:
        """Compute the prefix of a prompt that will come; nothing is generated. `exact`: for a deterministic one.

        The prompt itself continues from wherever this is when it is submitted. Cancel it when none will come. None
        where it would not help: it is short or too long, or the model is busy with requests.
        """
        ...

    def share(self, beginning: Sequence[int]) -> None:
        """The prefix of prompts that holds nothing of any tenant: salts divide the cache only behind it."""
        ...

    def remember(self, message: ChatMessage, ids: Sequence[int], *, salt: str = "") -> bytes | None:
        """Keep the exact tokens of an assistant turn, so that rendering it again never breaks the prefix. Where another
        worker may continue the conversation, returns the digest under which it looks for them."""
        ...

    def unknown(self, messages: Sequence[ChatMessage], *, salt: str = "") -> list[bytes]:
        """The digests of turns whose tokens another worker may have remembered; each is told once."""
        ...

    def learn(self, turns: Iterable[tuple[bytes, tuple[int, ...]]]) -> None:
        """Take what was remembered under these digests."""
        ...
