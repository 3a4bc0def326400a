"""Prompt lookup: the draft is what followed the newest tokens where they last occurred in the text, or in the one that
the request predicts. Needs no model. Pure.

Saxena, "Prompt Lookup Decoding" (2023); vLLM calls it ngram. Answers copy: names and numbers from tool results,
sentences from passages, lines of the text to be changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from inference.engine.step import StepCost
from inference.generation import Acceptance
from inference.request import Request
from inference.speculative.draft_length import Stream

# N-gram lengths at which a copy begins, longest first. Longer ones recur too seldom, and a single token says nothing.
ORDERS = (3, 2)
# How good a guess is depends most on how many tokens the copy has lasted, so acceptance is measured apart from each of
# these numbers on. The beliefs are a little below what answers of a small model showed: 0.48, 0.66, 0.74, 0.90, 0.97.
LASTED = (3, 4, 8, 16)
BELIEFS = (0.3, 0.4, 0.6, 0.8, 0.9)
# Tokens indexed per step, over all streams: about two milliseconds. A long prompt is indexed over several steps.
READ_TOKENS_MAX = 2048
# An indexed token takes about 300 bytes: 10 MB per stream. Of a longer prompt, only the end is indexed, which has the
# results and passages; a text that grows to twice this size is indexed anew.
KEPT_TOKENS_MAX = 32_768


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next, and how often guesses of this kind were right in this text."""

    tokens: Sequence[int]
    acceptance: Acceptance
    predicted: bool = False  # whether the request predicted them


class _Copy:
    """What the newest tokens copy, as far as it is known.

    A copy goes on where it is for as long as it is right, even if its newest tokens occur elsewhere as well, as those
    of code do. Only then is another place looked for.
    """

    predicted = False

    def __init__(self, original: Sequence[int]) -> None:
        self._original = original
        self._source: int | None = None  # where the token stands that comes next, if the copy goes on
        self._lasted = 0  # how many of the newest tokens stand before that place too
        self._acceptance = [Acceptance.believed(belief) for belief in BELIEFS]

    def guess(self, length: int) -> Guess | None:
        """At most that many tokens; None if nothing is known to be copied."""
        if self._source is None or not (tokens := self._original[self._source : self._source + length]):
            return None
        return Guess(tokens, self._measured(), self.predicted)

    def _follow(self, token: int, *, measured: bool) -> None:
        """Whether the copy goes on with this token."""
        if self._source is None:
            return
        right = self._source < len(self._original) and self._original[self._source] == token
        if measured:
            self._measured().observe(1, int(right))
        self._source, self._lasted = (self._source + 1, self._lasted + 1) if right else (None, 0)

    def _measured(self) -> Acceptance:
        return self._acceptance[bisect_right(LASTED, self._lasted)]


class Ngrams(_Copy):
    """A text from its token `begin` on that copies from itself, with an index that grows with it: the time per token
    for indexing and guessing does not depend on its length."""

    def __init__(self, begin: int = 0) -> None:
        self._begin = begin
        self._tokens: list[int] = []
        self._follows = {n: dict[tuple[int, ...], int]() for n in ORDERS}  # where each n-gram last ended
        super().__init__(self._tokens)

    @property
    def size(self) -> int:
        return len(self._tokens)

    @property
    def end(self) -> int:
        return self._begin + self.size

    def read(self, tokens: Sequence[int], *, written: bool = False) -> None:
        """Append these tokens. Tokens `written` by the model update the acceptance of the guesses."""
        for token in tokens:
            self._follow(token, measured=written)
            self._tokens.append(token)
            self._index()

    def _index(self) -> None:
        """Note where the newest n-grams end, and begin a copy where they ended before, unless one goes on."""
        for n, ends in self._follows.items():
            newest = tuple(self._tokens[-n:])
            if self._source is None and newest in ends:
                self._source, self._lasted = ends[newest], n
            if len(newest) == n:
                ends[newest] = self.size


class Prediction(_Copy):
    """An answer, beside the text that it is predicted to be. It begins as a copy; where it differs, it goes on as one
    behind the place that it had reached, or before it if its newest tokens come no more."""

    predicted = True

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(tokens)
        self._spelled = _spelled(tokens)
        self._newest: list[int] = []
        self._reached = 0
        self._source, self._lasted = 0, LASTED[-2]
        self.end = 0  # of what is read of the answer

    def read(self, tokens: Sequence[int]) -> None:
        """The next tokens of the answer."""
        for token in tokens:
            self._follow(token, measured=True)
            self._newest = [*self._newest[1 - max(ORDERS) :], token]
            if self._source is None:
                self._find()
            if self._source is not None:
                self._reached = self._source
        self.end += len(tokens)

    def _find(self) -> None:
        for n in ORDERS:
            newest = _spelled(self._newest[-n:])
            place = self._spelled.find(newest, max(0, self._reached - n)) if len(newest) == n else -1
            if place < 0:
                place = self._spelled.rfind(newest) if len(newest) == n else -1
            if place >= 0:
                self._source, self._lasted = place + n, n
                return


def _spelled(tokens: Sequence[int]) -> str:
    """A character for each token: a search in a string takes microseconds, and needs no index."""
    return "".join(map(chr, tokens))


@dataclass(slots=True)
class _Texts:
    """What a request may copy from: the text that it predicts, else its own."""

    prediction: Prediction | None
    own: Ngrams | None

    def read(self, request: Request, budget: int) -> int:
        """Read at most that many tokens of each; returns how many of its own are indexed."""
        if self.prediction:
            end = self.prediction.end
            self.prediction.read(request.generated[end : end + budget])
        return _catch_up(self.own, request, budget) if self.own else 0

    def guess(self, request: Request, length: int) -> Guess | None:
        written = len(request.generated)
        if self.prediction and self.prediction.end == written and (guess := self.prediction.guess(length)):
            return guess
        return self.own.guess(length) if self.own and self.own.end == len(request.prompt) + written else None


class PromptLookup:
    """Drafts from the requests' own texts, or from those that they predict, instead of a draft model.

    If `predicted_only`, no text is indexed.
    """

    watches = True

    def __init__(self, *, predicted_only: bool = False) -> None:
        self.predicted_only = predicted_only
        self._read: dict[Request, _Texts] = {}  # the requests of the last step
        self.cost = StepCost()  # nothing is observed: a guess takes microseconds

    def look(self, wanted: Sequence[tuple[Request, int]]) -> list[Stream]:
        """Index new tokens, and find how many can be guessed for each request, within its room."""
        self._read = {request: self._texts(request) for request, room in wanted if room}
        budget = READ_TOKENS_MAX
        for request, texts in self._read.items():
            budget -= texts.read(request, budget)
        return [self._stream(request, room) for request, room in wanted]

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[int, list[int]]:
        """Guesses by slot, at most as long as requested and as `look` found."""
        guesses = {request.slot: self._read[request].guess(request, length) for request, length in wanted}
        return {slot: list(guess.tokens) for slot, guess in guesses.items() if slot is not None and guess}

    def close(self) -> None:
        self._read.clear()

    def _texts(self, request: Request) -> _Texts:
        known = self._read.get(request)
        if known and (known.own is None or known.own.size <= 2 * KEPT_TOKENS_MAX):
            return known
        length = len(request.prompt) + len(request.generated)
        prediction = known.prediction if known else Prediction(request.prediction) if request.prediction else None
        return _Texts(prediction, None if self.predicted_only else Ngrams(max(0, length - KEPT_TOKENS_MAX)))

    def _stream(self, request: Request, room: int) -> Stream:
        texts = self._read.get(request)
        guess = texts.guess(request, room) if texts else None
        assert request.slot is not None
        if guess is None:
            return Stream(request.slot, request.acceptance, len(request.generated), missing=0, room=0)
        written, room = len(request.generated), len(guess.tokens)
        return Stream(request.slot, guess.acceptance, written, 0, room, guess.predicted)


def _catch_up(ngrams: Ngrams, request: Request, budget: int) -> int:
    """Index at most that many tokens; returns how many."""
    before, answered = ngrams.end, ngrams.end - len(request.prompt)
    if answered < 0:
        ngrams.read(request.prompt[before : before + budget])
    else:
        ngrams.read(request.generated[answered : answered + budget], written=True)
    return ngrams.end - before
