"""Holding the answers of requests to grammars: compiled by llguidance, then a state of its own for each text.

The library works within limits that count work, so what a schema costs does not depend on how busy the machine is. Its
compiler and its masks let go of the GIL; checking one token and taking it do not, and take microseconds.

Nothing compiled is kept beyond its turn: most grammars take one or two milliseconds, on a thread where nobody waits.
What is kept would have to be kept for each tenant, and a lexer that one request has filled would fail the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from inference.errors import GrammarFailed, InvalidSchema

# Of one grammar. The library's own limits are for one user: a quarter of a gigabyte of states, and 15 ms a token.
LIMITS = LLParserLimits(
    max_items_in_row=2_000,  # ways that are open at once: 2 ms to take a token
    initial_lexer_fuel=1_000_000,  # to compile: some 20 ms
    step_lexer_fuel=50_000,  # for a mask, and for the tokens up to the next one: some 4 ms
    step_max_items=20_000,  # the same of the parser: 1 ms
    max_lexer_states=30_000,  # at 1 to 2 kB each
    max_grammar_size=100_000,  # symbols: some 10 MB
    verbose_errors=False,  # they repeat the schema
)
REFILL_TOKENS = 16  # only masks refill the lexer's fuel; a long text of valid tokens would never need one
REASON_CHARS_MAX = 300
# A text that is forced is cut into tokens as the model likes it. The library would allow its own way of cutting alone.
HEADER = '%llguidance {"no_forcing": true}\n'
# Bytes of a text without a choice that are looked at for a draft: its longest one takes some tokens more.
FORCED_BYTES_MAX = 64
# Where the grammar leaves a space free, models put one.
SPACED = (b":", b",")
# Grammars in which a text without a choice is looked for. The library reads it to its end in one go, on the fuel that
# is left; 20,000 characters take it 20 ms.
FORESEEN_CHARS_MAX = 30_000  # of the whole grammar
FORESEEN_TEXT_CHARS_MAX = 1_000  # of a text in quotes in it
_PREAMBLE = "failed to compile JSON schema: "


class Matcher(Protocol):
    """What `llguidance.LLMatcher` offers."""

    def deep_copy(self) -> Matcher: ...

    def is_error(self) -> bool: ...

    def is_stopped(self) -> bool: ...

    def validate_tokens(self, tokens: list[int]) -> int: ...

    def consume_token(self, sampled_token: int) -> bool: ...

    def consume_tokens(self, sampled_tokens: list[int]) -> bool: ...

    def compute_bitmask(self) -> bytes: ...

    def compute_ff_bytes(self) -> bytes: ...


class Vocabulary:
    """The tokens of a model, as an answer shows them. Thread-safe.

    Control tokens have no text in an answer, so no grammar lets them through, but for those that end it. `tokenize`
    is the model's own way to cut a text; without it, nothing is foreseen.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        end_tokens: frozenset[int],
        tokenize: Callable[[str], list[int]] = lambda text: [],
    ) -> None:
        self._tokenize = tokenize
        # A tokenizer that puts a space before whatever it reads puts it before this.
        spaced = any(pieces[token].startswith(b" ") for token in tokenize("a")[:1])
        self._lead = "\n" if spaced else ""
        self.pieces = pieces
        self.end_tokens = end_tokens
        self.size = len(pieces)
        # Without a token that ends a turn there is none to let through: the library insists on one all the same.
        ends = sorted(end_tokens) or [len(pieces)]
        tokens = [*pieces] if end_tokens else [*pieces, b""]
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(tokens, ends[0])), eos_token=ends)

    def compile(self, grammar: str, opening: int | None = None) -> Grammar:
        """The grammar of a whole text, or of what the token `opening` begins in one. Call it where nobody waits.

        Raises InvalidSchema for what the library refuses, and for what leaves no way to begin.
        """
        matcher = LLMatcher(self._tokenizer, HEADER + grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # some grammars are too much from their first token on
        if matcher.is_error():
            raise InvalidSchema(f"no grammar can be made of this schema: {_reason(matcher.get_error())}")
        return Grammar(matcher, self, opening, foresees=_is_foreseen(grammar))

    def covering(self, text: bytes) -> list[int]:
        """Some tokens of the text: not those that the model would take, but found much faster."""
        return self._tokenizer.greedy_tokenize(_characters(text))

    def spell(self, text: bytes) -> list[int]:
        """The tokens of a text in the middle of another, as far as it is whole characters. Takes some 80 µs."""
        whole = _characters(text)
        return self._tokenize(self._lead + whole)[len(self._tokenize(self._lead)) :] if whole else []


class Grammar:
    """A compiled grammar. The texts of one turn follow each other, and share what the library has learnt of it."""

    def __init__(
        self, matcher: Matcher, vocabulary: Vocabulary, opening: int | None = None, *, foresees: bool = False
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._opening = opening
        self._foresees = foresees

    def start(self) -> Constraint:
        """The beginning of a text."""
        matcher = self._matcher.deep_copy()
        if self._opening is None:
            return Constraint(matcher, self._vocabulary, foresees=self._foresees)
        return Help(matcher, self._vocabulary, self._opening, foresees=self._foresees)


class Constraint:
    """What one request may say next. For one thread at a time. Raises GrammarFailed where the grammar gets too much to
    follow."""

    def __init__(self, matcher: Matcher, vocabulary: Vocabulary, *, foresees: bool = False) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._foresees = foresees
        self._mask: NDArray[np.bool_] | None = None  # of the place where the text stands
        self._taken = 0
        self._last = b""  # the text of the newest token

    def allows(self, token: int) -> bool:
        """Whether the token may come next; one that ends the turn may when the text is complete."""
        if self._matcher.is_stopped():
            self._check()
            return token in self._vocabulary.end_tokens
        return self._matcher.validate_tokens([token]) == 1

    def allowed(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """The same for many tokens at once."""
        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
            self._mask = np.unpackbits(bits, count=self._vocabulary.size, bitorder="little").astype(np.bool_)
        fitting: NDArray[np.bool_] = self._mask[tokens]
        return fitting

    def accept(self, token: int) -> None:
        """The text goes on with this token, which is allowed."""
        if not self._matcher.consume_token(token):
            raise _too_much()
        self._mask = None
        self._last = self._vocabulary.pieces[token]
        self._taken += 1
        if self._taken % REFILL_TOKENS == 0 and not self._matcher.is_stopped():
            self._matcher.compute_bitmask()

    def forced(self) -> list[int]:
        """The tokens that probably come next, where the grammar leaves no choice of the text but for a space. A guess:
        the model may cut it otherwise, and what follows the text may be part of its last token."""
        if not self._foresees:
            return []
        text = self._matcher.compute_ff_bytes()
        if text.endswith(SPACED) or (not text and self._last.endswith(SPACED)):
            text += self._behind_space(text)
        tokens = self._vocabulary.spell(text[:FORCED_BYTES_MAX])
        return tokens if len(text) <= FORCED_BYTES_MAX else tokens[:-1]

    def _behind_space(self, text: bytes) -> bytes:
        """How the text goes on if a space comes next; empty where that leaves a choice."""
        ahead, found = self._matcher.deep_copy(), b""
        while ahead.consume_tokens(self._vocabulary.covering(text + b" ")):
            text = ahead.compute_ff_bytes()
            if not text:
                break
            found += b" " + text
            if not text.endswith(SPACED) or len(found) > FORCED_BYTES_MAX:
                break
        return found

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _too_much()


class Help(Constraint):
    """Follows the text from a token on. Before that anything goes, and again where the grammar gets too much or leads
    nowhere."""

    def __init__(self, matcher: Matcher, vocabulary: Vocabulary, opening: int, *, foresees: bool = False) -> None:
        super().__init__(matcher, vocabulary, foresees=foresees)
        self._opening: int | None = opening
        self._follows = False

    def allows(self, token: int) -> bool:
        try:
            return not self._follows or super().allows(token)
        except GrammarFailed:
            self._release()
            return True

    def allowed(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        try:
            return super().allowed(tokens)
        except GrammarFailed:
            self._release()
            return np.ones(len(tokens), np.bool_)

    def accept(self, token: int) -> None:
        self._follows = self._follows or token == self._opening
        if self._follows:
            try:
                super().accept(token)
            except GrammarFailed:
                self._release()

    def forced(self) -> list[int]:
        return super().forced() if self._follows else []

    def _release(self) -> None:
        self._follows, self._opening = False, None


class _Tokens:
    """What the library asks a tokenizer for. It never has to cut a text into tokens itself: see HEADER."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], eos_token_id: int) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.special_token_ids = [eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        return []


def _characters(text: bytes) -> str:
    """The whole characters before one that is cut."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start].decode()


def _is_foreseen(grammar: str) -> bool:
    longest = max(map(len, grammar.split('"')))
    return len(grammar) <= FORESEEN_CHARS_MAX and longest <= FORESEEN_TEXT_CHARS_MAX


def _reason(error: str) -> str:
    """The first line of what the library says, which goes on with the schema."""
    return error.split(_PREAMBLE)[-1].split("\n")[0][:REASON_CHARS_MAX]


def _too_much() -> GrammarFailed:
    return GrammarFailed("the schema leaves too many ways open at once: make its alternatives differ sooner")
