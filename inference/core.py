"""The vocabulary of generation: what is asked of the model and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple, Protocol

from inference.grammar.constraint import Constraint
from inference.kvcache.miss_report import Miss, Verdict
from inference.outline import Part


class Priority(IntEnum):
    """Classes of requests: a lower one waits for the higher, and gives its place up to it."""

    INTERACTIVE = 0  # somebody is looking
    STANDARD = 1
    BATCH = 2
    AHEAD = 3  # nobody waits for it yet: see `LanguageModel.read_ahead`


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # end of turn or a stop string
    LENGTH = "length"  # max_tokens, or the context is full
    DEADLINE = "deadline"  # its time was over, while it waited or while it was written
    CANCELLED = "cancelled"
    ERROR = "error"


class Grammar(Protocol):
    """What the texts of a turn are held to, or from a mark on: `LanguageModel.prepare` makes it."""

    def start(self) -> Constraint: ...


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
    top_logprobs: int | None = None  # likeliest tokens told beside each token; None: no token's likelihood is told
    grammar: Grammar | None = None


@dataclass(slots=True)
class Stamps:
    """Monotonic nanoseconds stamped by the engine; 0 is 'not yet'. The layers above make spans of them."""

    submitted_ns: int = 0
    admitted_ns: int = 0  # taken into a batch for the first time
    prefilled_ns: int = 0  # last prompt token computed
    first_token_ns: int = 0
    last_token_ns: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model found a token, and the likeliest ones at its place: natural logarithms.

    After bias and penalties; before temperature, truncation and grammar, which only choose among the tokens.
    """

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


class Delta(NamedTuple):
    """A piece of generated text (never half a character, never part of a stop string) and its token count.

    A tuple, because one is made for every token: that costs a third of a frozen dataclass.
    """

    text: str
    tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()  # of these tokens, where the request wants them


class Generation(Protocol):
    """A running generation: `stream` its deltas, cancel at any time; the rest is valid as it grows.

    Leaving `stream` early does not cancel: the caller calls `cancel()` in `finally` (cancelling a finished generation
    does nothing).
    """

    stamps: Stamps
    ids: list[int]  # generated token ids, without the end-of-turn token
    finish: Finish | None

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
    """What the agent loop needs of a chat model; `inference.model.ChatModel` is the real one."""

    name: str
    context_length: int
    chat_template: str  # its text tells the dialect of tool calls

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()) -> list[Segment]:
        """Apply the chat template. `tools` are OpenAI function tools: {"type":"function","function":{...}}."""
        ...

    def encode(self, segments: Sequence[Segment]) -> list[int]: ...

    def count(self, text: str) -> int:
        """Number of tokens of untrusted text."""
        ...

    def verdict(self, segments: Sequence[Segment], generation: Generation) -> Verdict | None:
        """Why the prompt had to be read as far as it was; None before the generation was admitted."""
        ...

    def prepare(self, grammar: str, begins: str = "") -> Grammar | None:
        """Compile a grammar (see `inference.grammar`) for texts that follow each other. Takes milliseconds;
        thread-safe.

        The mark `begins` frees the text before it: the grammar only helps then, and is let go of where it is too much
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
        deadline_ns: int | None = None,
    ) -> Generation:
        """Submit a prompt. `salt` names the tenant: cached prefixes are only shared within one salt, and tenants of
        one priority get fair shares. At `deadline_ns`, on the monotonic clock, it ends with what there is.

        Raises PromptTooLong, QueueFull, EngineStopped.
        """
        ...

    def read_ahead(self, prompt: Sequence[int], *, salt: str = "", exact: bool = False) -> Generation | None:
        """Compute the beginning of a prompt that will come; nothing is generated. `exact`: for a deterministic one.

        The prompt itself goes on from wherever this stands when it is submitted. Cancel it when none will come. None
        where it would not help: it is short or too long, or the model is busy with what was asked.
        """
        ...

    def share(self, beginning: Sequence[int]) -> None:
        """The beginning of prompts that holds nothing of any tenant: salts divide the cache only behind it."""
        ...

    def remember(self, message: ChatMessage, ids: Sequence[int]) -> None:
        """Keep the exact tokens of an assistant turn, so that rendering it again never breaks the prefix."""
        ...
