"""Prompt lookup: the draft is what followed the newest tokens where they last occurred in the text. Needs no model.
Pure.

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

    tokens: list[int]
    acceptance: Acceptance


class Ngrams:
    """A text from its token `begin` on, with an index that grows with it: the time per token for indexing and guessing
    does not depend on its length.

    A copy goes on where it is for as long as it is right, even if its newest tokens occur elsewhere as well, as those
    of code do. Only then is another place looked for.
    """

    def __init__(self, begin: int = 0) -> None:
        self._begin = begin
        self._tokens: list[int] = []
        self._follows = {n: dict[tuple[int, ...], int]() for n in ORDERS}  # where each n-gram last ended
        self._source: int | None = None  # where the token stands that comes next, if the copy goes on
        self._lasted = 0  # how many of the newest tokens stand before that place too
        self._acceptance = [Acceptance.believed(belief) for belief in BELIEFS]

    @property
    def size(self) -> int:
        return len(self._tokens)

    @property
    def end(self) -> int:
        return self._begin + self.size

    def read(self, tokens: Sequence[int], *, written: bool = False) -> None:
        """Append these tokens. Tokens `written` by the model update the acceptance of the guesses."""
        for token in tokens:
            if self._source is not None:
                right = self._tokens[self._source] == token
                if written:
                    self._measured().observe(1, int(right))
                self._source, self._lasted = (self._source + 1, self._lasted + 1) if right else (None, 0)
            self._tokens.append(token)
            self._index()

    def guess(self, length: int) -> Guess | None:
        """At most that many tokens; None if the newest ones never occurred before."""
        if self._source is None:
            return None
        return Guess(self._tokens[self._source : self._source + length], self._measured())

    def _index(self) -> None:
        """Note where the newest n-grams end, and begin a copy where they ended before, unless one goes on."""
        for n, ends in self._follows.items():
            newest = tuple(self._tokens[-n:])
            if self._source is None and newest in ends:
                self._source, self._lasted = ends[newest], n
            if len(newest) == n:
                ends[newest] = self.size

    def _measured(self) -> Acceptance:
        return self._acceptance[bisect_right(LASTED, self._lasted)]


class PromptLookup:
    """Drafts from the requests' own texts instead of a draft model."""

    watches = True

    def __init__(self) -> None:
        self._read: dict[Request, Ngrams] = {}  # the requests of the last step
        self.cost = StepCost()  # nothing is observed: a guess takes microseconds

    def look(self, wanted: Sequence[tuple[Request, int]]) -> list[Stream]:
        """Index new tokens, and find how many can be guessed for each request, within its room."""
        self._read = {request: self._ngrams(request) for request, room in wanted if room}
        budget = READ_TOKENS_MAX
        for request, ngrams in self._read.items():
            budget -= _catch_up(ngrams, request, budget)
        return [self._stream(request, room) for request, room in wanted]

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[int, list[int]]:
        """Guesses by slot, at most as long as requested and as `look` found."""
        guesses = {request.slot: self._read[request].guess(length) for request, length in wanted}
        return {slot: guess.tokens for slot, guess in guesses.items() if slot is not None and guess}

    def close(self) -> None:
        self._read.clear()

    def _ngrams(self, request: Request) -> Ngrams:
        known = self._read.get(request)
        length = len(request.prompt) + len(request.generated)
        if known and known.size <= 2 * KEPT_TOKENS_MAX:
            return known
        return Ngrams(max(0, length - KEPT_TOKENS_MAX))

    def _stream(self, request: Request, room: int) -> Stream:
        ngrams = self._read.get(request)
        level = ngrams is not None and ngrams.end == len(request.prompt) + len(request.generated)
        guess = ngrams.guess(room) if ngrams and level else None
        assert request.slot is not None
        if guess is None:
            return Stream(request.slot, request.acceptance, len(request.generated), missing=0, room=0)
        return Stream(request.slot, guess.acceptance, len(request.generated), missing=0, room=len(guess.tokens))


def _catch_up(ngrams: Ngrams, request: Request, budget: int) -> int:
    """Index at most that many tokens; returns how many."""
    before, answered = ngrams.end, ngrams.end - len(request.prompt)
    if answered < 0:
        ngrams.read(request.prompt[before : before + budget])
    else:
        ngrams.read(request.generated[answered : answered + budget], written=True)
    return ngrams.end - before
