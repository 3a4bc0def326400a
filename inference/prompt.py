"""A prompt on its way to the model: messages, options of the chat template, the pieces that it renders, their tokens;
and what the prompt cache shares with whom, and says of a prompt that it did not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Literal, TypeAlias

from inference.frozen import dataclass
from inference.picture import Picture, PictureRange, PictureTokens


class Part(StrEnum):
    """The role of a piece of the prompt, in the usual order."""

    SYSTEM = "system"
    TOOLS = "tools"  # their schemas
    HISTORY = "history"  # messages before the question
    PASSAGES = "passages"
    QUESTION = "question"  # the newest user message
    RESULTS = "results"  # calls and results of the current turn so far


@dataclass(frozen=True, slots=True)
class Extent:
    """A number of consecutive prompt tokens that belong to one part."""

    part: Part
    tokens: int


@dataclass(frozen=True, slots=True)
class Miss:
    """What the cache had of a prompt. After the tokens that it had, the prompt has `wanted`, and the closest entry
    `held`: a few tokens of each. `held` is empty if that entry ends there.

    The first `cached` tokens were reused. As many as `stateless` follow in the cache that were computed again, because
    no checkpoint of the model's recurrent layers belongs to them.
    """

    cached: int
    seen: int = 0  # tokens of the longest prefix that was ever prefilled, in blocks
    wanted: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    stateless: int = 0

    @property
    def known(self) -> int:
        """Tokens that the cache had, whether they were reused or not."""
        return self.cached + self.stateless


class Cause(StrEnum):
    """Why the first token that was not reused is new."""

    FIRST_USE = "first_use"  # this tenant never sent it before
    EDITED = "edited"  # there was another text in its place
    EVICTED = "evicted"  # it was in the cache and was evicted
    RETOKENISED = "retokenised"  # the same text, split into other tokens
    NO_CHECKPOINT = "no_checkpoint"  # it was in the cache, but no state of the recurrent layers belongs to it


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cached` of `tokens` prompt tokens were reused. `segment` and `cause` are None if all were, or all but the last
    token, which is computed unless the same prompt was answered just before."""

    cached: int
    tokens: int
    segment: Part | None = None
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class CacheScope:
    """Prompts share cached prefixes only within one scope: those of one tenant that are computed the same way.

    `exact` requests are computed differently (see `Request.batchable` and `Request.reusable`), so their cache is
    separate. Prefixes without any tenant's data are shared across scopes: see `SharedPrefixes`.
    """

    tenant: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the chat template expects it; `arguments` is the JSON text as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class PlacedPicture:
    """A picture before character `at` of a text."""

    at: int
    picture: Picture

    def behind(self, chars: int) -> PlacedPicture:
        """The same in a text with so many characters before it."""
        return PlacedPicture(self.at + chars, self.picture)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message as the chat template sees it. Content is untrusted text: it never becomes special tokens.

    Its first `passage_chars` characters are retrieved passages, not words of the role.
    """

    role: str  # system | user | assistant | tool
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""  # precedes the content; the template decides whether the model sees it again
    passage_chars: int = 0
    pictures: tuple[PlacedPicture, ...] = ()  # in the order of their places


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the rendered prompt. Special tokens are recognised only if `trusted` is true.

    `ids`, if present, are the exact tokens of this piece (a turn that this model generated; a picture). The first
    `passage_chars` characters belong to the part PASSAGES, the others to `part`. A `picture` becomes segments with ids,
    of which those with `picture_tokens` stand for its embeddings.
    """

    text: str
    trusted: bool
    ids: tuple[int, ...] | None = None
    part: Part = Part.HISTORY
    passage_chars: int = 0
    picture: Picture | None = None
    picture_tokens: PictureTokens | None = None


class PromptTokens(list[int]):
    """The ids of a prompt. Other prompts may begin with the tokens before one of its `boundaries`, and go on from
    there: behind the instructions and the tools, before and behind the question with its passages, at each turn."""

    def __init__(
        self,
        ids: Iterable[int],
        boundaries: Sequence[int] = (),
        pictures: Sequence[PictureRange] = (),
        starts: Sequence[int] = (),
    ) -> None:
        super().__init__(ids)
        self.boundaries = boundaries
        self.pictures = pictures  # in order
        self.starts = starts  # of its segments, and the end of the last one

    @staticmethod
    def boundaries_of(prompt: Sequence[int]) -> Sequence[int]:
        """None are known of a prompt that was not made from segments."""
        return prompt.boundaries if isinstance(prompt, PromptTokens) else ()

    @staticmethod
    def pictures_of(prompt: Sequence[int]) -> Sequence[PictureRange]:
        """A prompt that was not made from segments has no pictures."""
        return prompt.pictures if isinstance(prompt, PromptTokens) else ()


def image_tokens(prompt: Sequence[int]) -> int:
    """The tokens of a prompt that stand for pictures."""
    return sum(len(placed.tokens.ids) for placed in PromptTokens.pictures_of(prompt))


class Rendered(list[Segment]):
    """A rendered prompt. `rewrites` names what was changed for a chat template that does not take all messages."""

    def __init__(self, segments: Iterable[Segment] = (), rewrites: Sequence[str] = ()) -> None:
        super().__init__(segments)
        self.rewrites = rewrites


# Options that a request sets in the model's chat template, such as whether the model reasons before it answers.
# Templates have variables for them, under various names. An option for which the template has none is ignored.
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Value: TypeAlias = bool | int | float | str

EFFORT = "reasoning_effort"  # gpt-oss, Mistral
THINKING = ("enable_thinking", "thinking")  # Qwen, GLM, SmolLM; DeepSeek, Granite
VERBOSITY = "verbosity"
NO_OPTIONS: Mapping[str, Value] = {}
WITHOUT_THINKING = frozenset({"none", "minimal"})
# Models were trained on low, medium and high.
NEAREST: Mapping[str, str] = {"minimal": "low", "xhigh": "high", "max": "high"}


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """`variables` are set by name and override what `effort` implies."""

    effort: Effort | None = None
    verbosity: str | None = None
    variables: Mapping[str, Value] = field(default_factory=dict)

    def chosen(self, known: frozenset[str]) -> dict[str, Value]:
        """Values for the variables that the template has (`known`)."""
        wishes: dict[str, Value] = {}
        if self.effort is not None:
            wishes[EFFORT] = NEAREST.get(self.effort, self.effort)
            wishes |= dict.fromkeys(THINKING, self.effort not in WITHOUT_THINKING)
        if self.verbosity is not None:
            wishes[VERBOSITY] = self.verbosity
        return {name: value for name, value in (wishes | dict(self.variables)).items() if name in known}


def have_effort(known: frozenset[str]) -> bool:
    """Whether one of these template variables sets the effort."""
    return not known.isdisjoint({EFFORT, *THINKING})
