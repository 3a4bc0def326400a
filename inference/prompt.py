"""A prompt on its way to the model: messages, the pieces that the chat template renders, and their tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inference.frozen import dataclass
from inference.picture import Picture, PlacedRun, Run
from inference.prompt_cache import Part


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
    of which those with a `run` stand for its vectors.
    """

    text: str
    trusted: bool
    ids: tuple[int, ...] | None = None
    part: Part = Part.HISTORY
    passage_chars: int = 0
    picture: Picture | None = None
    run: Run | None = None


class PromptTokens(list[int]):
    """The ids of a prompt. Other prompts may begin with the tokens before one of its `boundaries`, and go on from
    there: behind the instructions and the tools, before and behind the question with its passages, at each turn."""

    def __init__(self, ids: Iterable[int] = (), boundaries: Sequence[int] = (), runs: Sequence[PlacedRun] = ()) -> None:
        super().__init__(ids)
        self.boundaries = boundaries
        self.runs = runs  # the pictures, in order

    @staticmethod
    def boundaries_of(prompt: Sequence[int]) -> Sequence[int]:
        """None are known of a prompt that was not made from segments."""
        return prompt.boundaries if isinstance(prompt, PromptTokens) else ()

    @staticmethod
    def runs_of(prompt: Sequence[int]) -> Sequence[PlacedRun]:
        """A prompt that was not made from segments has no pictures."""
        return prompt.runs if isinstance(prompt, PromptTokens) else ()


def image_tokens(prompt: Sequence[int]) -> int:
    """The tokens of a prompt that stand for pictures."""
    return sum(len(placed.run.ids) for placed in PromptTokens.runs_of(prompt))


class Rendered(list[Segment]):
    """A rendered prompt. `rewrites` names what was changed for a chat template that does not take all messages."""

    def __init__(self, segments: Iterable[Segment] = (), rewrites: Sequence[str] = ()) -> None:
        super().__init__(segments)
        self.rewrites = rewrites
