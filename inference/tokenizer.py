"""Text to token ids, each piece once, and back.

Pieces are tokenised separately, and special tokens are recognised only in trusted ones: that keeps a user, a tool or a
document from forging the end of a turn. Since pieces recur from turn to turn (system prompt, tools, history), their ids
are cached, separately per tenant: the time to tokenise a text must not reveal whether another tenant sent it.

Tokenising a megabyte takes a second, so text with more bytes than a full context can spell is not tokenised at all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from encodings import utf_8
from itertools import accumulate, chain, pairwise
from typing import Protocol, TypeAlias

from inference.errors import TextTooLong
from inference.lru_cache import LruCache
from inference.picture import PictureRange
from inference.prompt import Extent, Part, PromptTokens, Segment

CACHE_BYTES_MAX = 32 * 2**20  # some hundred long conversations with their tools
# The cache key of ids: the tenant, as in `LanguageModel.generate`, the text, and whether it is trusted.
Piece: TypeAlias = tuple[str, str, bool]
PIECE_BYTES = 400  # per cached piece, besides its text and ids: two tuples, a string, an entry of the index
CHARACTER_BYTES, ID_BYTES = 4, 36  # upper bounds; an id is a pointer and a number


class Vocabulary(Protocol):
    """The part of a model that a tokenizer needs. Thread-safe."""

    @property
    def bos(self) -> int | None: ...

    def tokenize(self, text: str, *, parse_special: bool) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Room:
    """The capacity of a context: `tokens`, each of which spells at most `token_bytes` of text."""

    tokens: int
    token_bytes: int

    @property
    def text_bytes(self) -> int:
        return self.tokens * self.token_bytes

    def excess_bytes(self, texts: Iterable[str]) -> int:
        """Positive if the texts are too long whatever their tokens are."""
        texts = list(texts)
        if CHARACTER_BYTES * sum(map(len, texts)) <= self.text_bytes:
            return 0
        return sum(len(text.encode("utf-8", "replace")) for text in texts) - self.text_bytes

    def check(self, segments: Sequence[Segment]) -> None:
        """Raises TextTooLong. Markup does not count: a vocabulary may drop blanks next to it. A prompt of a single
        piece is not markup: no template wrote it.
        """
        texts = [segment for segment in segments if segment.ids is None]
        if len(segments) > 1:
            texts = [segment for segment in texts if not segment.trusted]
        excess = self.excess_bytes(segment.text for segment in texts)
        if excess > 0:
            raise TextTooLong(excess, self.text_bytes, self.tokens)


class Tokenizer:
    def __init__(
        self, vocabulary: Vocabulary, room: Room | None = None, openings: frozenset[str] = frozenset()
    ) -> None:
        """Without `room`, the length of texts is not limited. `openings`: as in `ChatTemplate`."""
        self._vocabulary = vocabulary
        self._room = room
        self._openings = openings
        self._bos = vocabulary.bos
        self._kept: LruCache[Piece, tuple[int, ...]] = LruCache(CACHE_BYTES_MAX, _bytes)
        self._lock = threading.Lock()  # long prompts are encoded on a worker thread
        self.hits = self.misses = 0

    @property
    def kept_bytes(self) -> int:
        """Upper bound for the size of the cached pieces."""
        return self._kept.size

    def encode(self, segments: Sequence[Segment], *, salt: str = "") -> PromptTokens:
        """The ids of a whole prompt, with the model's beginning-of-sequence token if it needs one. A prompt that starts
        with exact tokens starts with these.

        Raises TextTooLong.
        """
        if self._room:
            self._room.check(segments)
        pieces, start = [self._ids(segment, salt) for segment in segments], list[int]()
        if self._bos is not None and not (segments and segments[0].ids is not None):
            start = [self._bos] if next(chain.from_iterable(pieces), None) != self._bos else []
        starts = list(accumulate(map(len, pieces), initial=len(start)))
        pictures = [
            PictureRange(at, segment.picture_tokens)
            for at, segment in zip(starts, segments, strict=False)
            if segment.picture_tokens
        ]
        return PromptTokens(chain(start, *pieces), _boundaries(segments, starts, self._openings), pictures, starts)

    def outline(self, segments: Sequence[Segment], starts: Sequence[int], *, salt: str = "") -> list[Extent]:
        """The parts of the tokens that `encode` returned for the segments. A token that spans a passage and the
        question may be counted with either."""
        extents = [Extent(segments[0].part, starts[0])] if starts[0] else []
        for segment, (start, end) in zip(segments, pairwise(starts), strict=True):
            found = segment.text[: segment.passage_chars]
            passages = min(end - start, self.count(found, salt=salt)) if found else 0
            extents += [Extent(Part.PASSAGES, passages)] if passages else []
            extents.append(Extent(segment.part, end - start - passages))
        return extents

    def count(self, text: str, *, salt: str = "") -> int:
        """Number of tokens of untrusted text; for a text that is too long whatever its tokens are, one more than there
        is room for.
        """
        if self._room and self._room.excess_bytes([text]) > 0:
            return self._room.tokens + 1
        return len(self._ids(Segment(text, trusted=False), salt))

    def mark(self, text: str) -> int | None:
        """The token that represents this text; None if it takes several."""
        ids = self._ids(Segment(text, trusted=True), salt="")
        return ids[0] if len(ids) == 1 else None

    def _ids(self, segment: Segment, salt: str) -> tuple[int, ...]:
        if segment.ids is not None:
            return segment.ids
        piece = salt, segment.text, segment.trusted
        with self._lock:
            if (ids := self._kept.get(piece)) is not None:
                self.hits += 1
                return ids
        ids = tuple(self._vocabulary.tokenize(segment.text, parse_special=segment.trusted))
        with self._lock:
            self.misses += 1
            self._kept.put(piece, ids)
        return ids


def _boundaries(segments: Sequence[Segment], starts: Sequence[int], openings: frozenset[str]) -> tuple[int, ...]:
    """Where prompts part that begin alike: before the first text of each part (another conversation has the same
    instructions, an edit or a later turn another question or no passages), and behind the last text, unless later
    prompts have the same opening of the answer. `starts`: the positions of the segments, and the end of the prompt.
    """
    texts = [at for at, segment in enumerate(segments) if not segment.trusted or segment.ids is not None]
    parts = [segments[at].part for at in texts]
    firsts = [starts[at] for at, part, last in zip(texts, parts, [None, *parts], strict=False) if part is not last]
    last = [] if segments and segments[-1].trusted and segments[-1].text in openings else texts[-1:]
    return (*firsts, *(starts[at + 1] for at in last))


class Tokenize(Protocol):
    """`LanguageModel.tokenize`."""

    def __call__(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...


def count_all(segments: Sequence[Segment], tokenize: Tokenize, bos: Sequence[int]) -> int:
    """The tokens of a prompt as `Tokenizer.encode` returns them, but of any length, and none of them cached. `bos`: the
    model's beginning-of-sequence token, if it needs one."""
    count = 0
    for index, segment in enumerate(segments):
        ids: Sequence[int] = segment.ids or ()
        if segment.ids is None:
            ids = tokenize(segment.text, add_special=False, parse_special=segment.trusted)
            count += len(bos) if index == 0 and [*ids[: len(bos)]] != [*bos] else 0
        count += len(ids)
    return count


def _bytes(piece: Piece, ids: tuple[int, ...]) -> int:
    """Upper bound for the size of a cached piece."""
    return PIECE_BYTES + CHARACTER_BYTES * len(piece[1]) + ID_BYTES * len(ids)


class TextStream:
    """Token ids to text: push tokens, get the text that they complete, never half a character."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decoder = utf_8.IncrementalDecoder("replace")

    def push(self, token: int) -> str:
        piece = self._pieces[token]
        if piece.isascii() and not self._decoder.buffer:  # as nearly always, in a fifth of the time
            return piece.decode()
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """The end of the text: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


# Around the reasoning that precedes an answer.
THOUGHTS = (
    ("<think>", "</think>"),  # Qwen, DeepSeek and others
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<|channel>", "<channel|>"),  # Gemma
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<mm:think>", "</mm:think>"),  # MiniMax
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
    ("Here is my thought process:", "Here is my response:"),  # Granite 3.2
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<reasoning>", "</reasoning>"),  # Reka Flash
    ("◁think▷", "◁/think▷"),  # Kimi VL
    ("<longcat_think>", "</longcat_think>"),  # LongCat
    ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),  # PLaMo 3
    ("[unused16]", "[unused17]"),  # openPangu
    ("<|think:start|>", "<|think:end|>"),  # Solar Open 2
    ("<|think|>", "<|end|>"),  # Solar Open
)
ENDS_OTHERS_TOO = frozenset({"<|end|>"})  # such a mark alone does not tell that a model reasons
# Around the answer of models that reason, and no part of it.
AROUND_ANSWERS = (
    ("<answer>", "</answer>"),  # Hunyuan
    ("<response>", "</response>"),  # Granite 3.3, Ernie
    ("<|begin|>assistant", "<|content|>"),  # Solar Open
)
# Control tokens have no text in generated output, so that users do not see end-of-turn markers. These mark tool calls
# and reasoning: they keep their text if the model's chat template contains them, for the parser of its tool-call
# dialect. Those of Hermes keep it in any case: in that dialect, tools are described to a model whose template has none.
DESCRIBED = frozenset({"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"})  # Hermes and Qwen
SIGNIFICANT = (
    DESCRIBED
    | frozenset(chain.from_iterable((*THOUGHTS, *AROUND_ANSWERS)))
    | {
        # Llama 3, Mistral
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        # Gemma
        "<|tool_call>",
        "<tool_call|>",
        '<|"|>',
        "<start_function_call>",
        "<end_function_call>",
        "<escape>",
        # gpt-oss
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
    }
)


def significant_tokens(chat_template: str) -> frozenset[str]:
    """The texts of control tokens that an answer of this model may contain. A template that takes the reasoning out of
    earlier answers may name only its end."""
    named = {mark for mark in SIGNIFICANT if mark in chat_template}
    return DESCRIBED.union(named, *(marks for marks in THOUGHTS if not named.isdisjoint(marks)))
