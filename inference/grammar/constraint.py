"""Constraining the answers of requests by grammars: compiled by llguidance, with a separate state for each text.

The library runs within limits that count work, so the cost of a schema does not depend on the load of the machine. Its
compiler and its masks release the GIL; checking or consuming a single token does not, and takes microseconds.

Compiling takes milliseconds, on a thread outside the event loop. Lazy grammars outlive their turn, as all turns with
the same tools have the same one. The texts of a grammar share its lexer, and one that fills it fails the others: a lazy
one then goes on without the grammar, which is compiled for each turn from then on. So is any other grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from inference.errors import GrammarFailed, InvalidSchema
from inference.lru_cache import LruCache


def _limits(lexer_states: int) -> LLParserLimits:
    """Per grammar. The library's own limits are for a single user: a quarter of a gigabyte of states, and 15 ms per
    token."""
    return LLParserLimits(
        max_items_in_row=2_000,  # alternatives open at once: 2 ms to consume a token
        initial_lexer_fuel=1_000_000,  # for compiling: about 20 ms
        step_lexer_fuel=50_000,  # for a mask, and for the tokens up to the next one: about 4 ms
        step_max_items=20_000,  # the same for the parser: 1 ms
        max_lexer_states=lexer_states,  # at 1 to 2 kB each
        max_grammar_size=100_000,  # symbols: about 10 MB
        verbose_errors=False,  # they repeat the schema
    )


LIMITS = _limits(30_000)
# Twenty functions need fewer than 1,000 states, after as many texts as one likes. A kept grammar has 0.2 MB, at most 8;
# so those of all tenants have 7 MB where nobody means harm.
KEPT_LIMITS, KEPT_MAX, KEPT_CHARS_MAX = _limits(4_000), 32, 20_000
REFILL_TOKENS = 16  # only masks refill the lexer's fuel; a long text of valid tokens would never need one
REASON_CHARS_MAX = 300
# The model may tokenise a forced text as it likes. The library would only allow its own tokenisation.
HEADER = '%llguidance {"no_forcing": true}\n'
# Bytes of a forced text that are considered for a draft: the longest draft takes a few tokens more.
FORCED_BYTES_MAX = 64
OPENS, CLOSES = (b"[", b"{"), (b"]", b"}")  # of lists and objects in JSON
# Where the grammar makes a space optional, models write one.
SPACED = (b":", b",")
# Limits for grammars in which forced text is looked for. The library reads such a text to its end in one go, with the
# fuel that is left; 20,000 characters take it 20 ms.
FORCED_GRAMMAR_CHARS_MAX = 30_000  # of the whole grammar
FORCED_TEXT_CHARS_MAX = 1_000  # of a quoted text in it; behind a longer forced text none is looked for
# Behind so many digits a number ends, or goes on with a point or an exponent: a small model may write digits without
# end. No bound of a schema is as long, and 128 bits have 39; llama.cpp allows 16 before the point and behind it.
DIGITS_MAX = 40
DIGITS = b"0123456789"
AMID_NUMBER = DIGITS + b".eE,]} \t\r\n"
AMID_NUMBER_TOKENS_MAX = 5_000  # that may come next: it takes a millisecond; where more may, a text is written
_PREAMBLE = "failed to compile JSON schema: "
_PLACE = re.compile(r"^(at )?\d+\(\d+\): ")  # line and column


class Vocabulary:
    """The tokens of a model, with their text in answers. Thread-safe.

    Control tokens have no text in an answer, so no grammar allows them, except those that end it. `tokenize` is the
    model's own tokenisation; without it, forced text is not looked for.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        end_tokens: frozenset[int],
        tokenize: Callable[[str], list[int]] = lambda text: [],
    ) -> None:
        self._tokenize = tokenize
        # A tokenizer that prepends a space to its input prepends it to this.
        spaced = any(pieces[token].startswith(b" ") for token in tokenize("a")[:1])
        self._lead = "\n" if spaced else ""
        self.pieces = pieces
        self.end_tokens = end_tokens
        self.size = len(pieces)
        self._containing: dict[bytes, frozenset[int]] = {}
        self._kept: LruCache[tuple[str, str, str], Grammar] = LruCache(KEPT_MAX)
        self._keeping = Lock()
        # The library requires an end token even if the model has none.
        ends = sorted(end_tokens) or [len(pieces)]
        tokens = [*pieces] if end_tokens else [*pieces, b""]
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(tokens, ends[0])), eos_token=ends)

    def compile(self, grammar: str, trigger: str = "", *, salt: str = "") -> Grammar:
        """The grammar of a whole text, or a lazy one, of what follows the first `trigger` in a text, however that is
        tokenised: it must allow any text before the trigger. Call it off the event loop. `salt` names the tenant: how
        long this takes tells nothing about another's tools.

        Raises InvalidSchema if the library refuses the grammar, or if nothing matches it.
        """
        if not trigger or len(grammar) > KEPT_CHARS_MAX:
            return self._compiled(grammar, trigger, LIMITS)
        key = salt, trigger, grammar
        with self._keeping:
            known = self._kept.get(key)
        if known is None:
            known = self._compiled(grammar, trigger, KEPT_LIMITS)
            with self._keeping:
                self._kept.put(key, known)
        return self._compiled(grammar, trigger, LIMITS) if known.outgrown else known

    def _compiled(self, grammar: str, trigger: str, limits: LLParserLimits) -> Grammar:
        matcher = LLMatcher(self._tokenizer, HEADER + grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # some grammars exceed the limits at their first token
        if matcher.is_error():
            raise InvalidSchema(f"this schema cannot be compiled to a grammar: {_reason(matcher.get_error())}")
        return Grammar(matcher, self, trigger.encode(), finds_forced=_finds_forced_in(grammar))

    def containing(self, byte: bytes) -> frozenset[int]:
        """The tokens whose text contains this byte."""
        if byte not in self._containing:
            self._containing[byte] = frozenset(token for token, piece in enumerate(self.pieces) if byte in piece)
        return self._containing[byte]

    def covering(self, text: bytes) -> list[int]:
        """Some tokens of the text: not the model's tokenisation, but found much faster."""
        return self._tokenizer.greedy_tokenize(_characters(text))

    def spell(self, text: bytes) -> list[int]:
        """The tokens of a text in the middle of another, up to its last whole character. Takes about 80 µs."""
        whole = _characters(text)
        return self._tokenize(self._lead + whole)[len(self._tokenize(self._lead)) :] if whole else []


class Grammar:
    """A compiled grammar. Its texts share what the library has learnt of it, and the limit of that. `outgrown`: one of
    them went beyond the limits."""

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, trigger: bytes, *, finds_forced: bool) -> None:
        self.outgrown = False
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._trigger = trigger
        if trigger:
            vocabulary.containing(trigger[:1])  # takes milliseconds once: not for the event loop
        self._finds_forced = finds_forced

    def start(self) -> Constraint:
        """The state at the start of a text."""
        matcher = self._matcher.deep_copy()
        if not self._trigger:
            return Constraint(matcher, self._vocabulary, finds_forced=self._finds_forced)
        return LazyConstraint(matcher, self._vocabulary, self._trigger, self._outgrow, finds_forced=self._finds_forced)

    def _outgrow(self) -> None:
        self.outgrown = True


class Constraint:
    """What one request may generate next. Used by one thread at a time. Raises GrammarFailed if following the grammar
    exceeds the limits."""

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, *, finds_forced: bool) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._finds_forced = finds_forced
        self._mask: NDArray[np.bool_] | None = None  # for the next token
        self._taken = 0
        self._last = b""  # the text of the newest token
        self._digits = 0  # at the end of the text

    def allows(self, token: int) -> bool:
        """Whether the token may come next; an end token may once the text is complete."""
        if self._matcher.is_stopped():
            self._check()
            return token in self._vocabulary.end_tokens
        if self._digits >= DIGITS_MAX:
            return bool(self.allowed(np.array([token]))[0])
        return self._matcher.validate_tokens([token]) == 1

    def allowed(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """The same for many tokens at once."""
        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
            self._mask = np.unpackbits(bits, count=self._vocabulary.size, bitorder="little").astype(np.bool_)
            if self._digits >= DIGITS_MAX:
                self._end_number(self._mask)
        fitting: NDArray[np.bool_] = self._mask[tokens]
        return fitting

    def instead(self, refused: int, tokens: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Those of `tokens` that may come next in place of the refused one. A list or an object is not closed empty
        because what was meant to stand in it does not fit."""
        fitting = tokens[self.allowed(tokens)]
        pieces = self._vocabulary.pieces
        if not self._last.endswith(OPENS) or pieces[refused].lstrip().startswith(CLOSES):
            return fitting
        goes_on = (not pieces[token].startswith(CLOSES) for token in fitting.tolist())
        return fitting[np.fromiter(goes_on, np.bool_, len(fitting))]

    def accept(self, token: int) -> None:
        """Append a token, which must be allowed."""
        if not self._matcher.consume_token(token):
            raise _too_much()
        self._mask = None
        self._last = self._vocabulary.pieces[token]
        behind = self._last.rstrip(DIGITS)
        self._digits = len(self._last) - len(behind) + (0 if behind else self._digits)
        self._taken += 1
        if self._taken % REFILL_TOKENS == 0 and not self._matcher.is_stopped():
            self._matcher.compute_bitmask()

    def _end_number(self, mask: NDArray[np.bool_]) -> None:
        """No further digit, if it is a number that is written and it may end."""
        tokens = np.flatnonzero(mask)
        if len(tokens) > AMID_NUMBER_TOKENS_MAX:
            return
        firsts = [self._vocabulary.pieces[token][:1] for token in tokens.tolist()]
        is_digit = np.fromiter((first.isdigit() for first in firsts), np.bool_, len(tokens))
        if all(first in AMID_NUMBER for first in firsts) and not is_digit.all():
            mask[tokens[is_digit]] = False

    def forced(self) -> list[int]:
        """The tokens that probably come next where the grammar leaves no choice of text except an optional space. A
        guess: the model may tokenise it differently, and its last token may extend beyond the text."""
        if not self._finds_forced:
            return []
        text = self._matcher.deep_copy().compute_ff_bytes()  # one that takes all the fuel fails what follows it
        self._finds_forced = len(text) <= FORCED_TEXT_CHARS_MAX
        if text.endswith(SPACED) or (not text and self._last.endswith(SPACED)):
            text += self._behind_space(text)
        tokens = self._vocabulary.spell(text[:FORCED_BYTES_MAX])
        return tokens if len(text) <= FORCED_BYTES_MAX else tokens[:-1]

    def _behind_space(self, text: bytes) -> bytes:
        """How the text continues if a space comes next; empty if that leaves a choice."""
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


class LazyConstraint(Constraint):
    """Constrains the text from a trigger on, as a lazy grammar of llama.cpp does. Before it anything is allowed, and
    again once the grammar exceeds the limits or allows nothing.

    A vocabulary may spell the trigger in several tokens, and its last one may extend beyond it. `outgrown` is called
    when the grammar is given up.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        vocabulary: Vocabulary,
        trigger: bytes,
        outgrown: Callable[[], None],
        *,
        finds_forced: bool,
    ) -> None:
        super().__init__(matcher, vocabulary, finds_forced=finds_forced)
        self._outgrown = outgrown
        self._trigger, self._starts = trigger, vocabulary.containing(trigger[:1])
        self._partial = b""  # the longest end of the text that begins the trigger
        self._active = self._released = False

    def allows(self, token: int) -> bool:
        if not self._active:  # nearly all tokens are far from a trigger
            return (not self._partial and token not in self._starts) or self._may_trigger(token)
        try:
            return super().allows(token)
        except GrammarFailed:
            self._release()
            return True

    def allowed(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        if not self._active:
            return np.fromiter(map(self.allows, tokens.tolist()), np.bool_, len(tokens))
        try:
            return super().allowed(tokens)
        except GrammarFailed:
            self._release()
            return np.ones(len(tokens), np.bool_)

    def accept(self, token: int) -> None:
        if not self._active and ((not self._partial and token not in self._starts) or not self._triggers(token)):
            return
        try:
            super().accept(token)
        except GrammarFailed:
            self._release()

    def forced(self) -> list[int]:
        return super().forced() if self._active else []

    def _may_trigger(self, token: int) -> bool:
        """Whether the text goes beyond the trigger with this token only if it fits."""
        text = self._partial + self._vocabulary.pieces[token]
        if self._released or (at := text.find(self._trigger)) < 0 or at + len(self._trigger) == len(text):
            return True
        tokens = [*self._vocabulary.covering(self._partial), token]
        return self._matcher.validate_tokens(tokens) == len(tokens)

    def _triggers(self, token: int) -> bool:
        """Whether the token completes the trigger: the grammar is active from it on."""
        if self._released:
            return False
        text = self._partial + self._vocabulary.pieces[token]
        if self._trigger in text:
            self._active = True
            self._matcher.consume_tokens(self._vocabulary.covering(self._partial))
            return True
        begun = range(min(len(text), len(self._trigger) - 1), 0, -1)
        self._partial = next((self._trigger[:length] for length in begun if text.endswith(self._trigger[:length])), b"")
        return False

    def _release(self) -> None:
        self._outgrown()
        self._active, self._released, self._partial = False, True, b""


class _Tokens:
    """The tokenizer interface that the library needs. The library never has to tokenise a text itself: see HEADER."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], eos_token_id: int) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.special_token_ids = [eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        return []


_NO_TEXT = Vocabulary([b""], frozenset({0}))


def check_productive(hollow: str) -> None:
    """Raises InvalidSchema for a grammar with a rule that is not defined, or that no text completes: an answer could
    not go on there. `hollow` is what `lark.hollow` makes of the grammar. Takes about a millisecond."""
    matcher = LLMatcher(_NO_TEXT._tokenizer, hollow, log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise InvalidSchema(_PLACE.sub("", _reason(matcher.get_error())))
    if not matcher.is_accepting():
        raise InvalidSchema("one of its rules never ends: each of the alternatives needs the rule again")


def _characters(text: bytes) -> str:
    """The text up to its last whole character."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start].decode()


def _finds_forced_in(grammar: str) -> bool:
    longest = max(map(len, grammar.split('"')))
    return len(grammar) <= FORCED_GRAMMAR_CHARS_MAX and longest <= FORCED_TEXT_CHARS_MAX


def _reason(error: str) -> str:
    """The first line of the library's message; the rest repeats the schema."""
    return error.split(_PREAMBLE)[-1].split("\n")[0][:REASON_CHARS_MAX]


def _too_much() -> GrammarFailed:
    return GrammarFailed("the schema leaves too many ways open at once: make its alternatives differ sooner")
