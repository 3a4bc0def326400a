"""Prompt lookup: the draft is what followed the newest tokens where they last occurred in the text, or in the one that
the request predicts. Needs no model. Pure.

Saxena, "Prompt Lookup Decoding" (2023); vLLM calls it ngram. Answers copy: names and numbers from tool results,
sentences from passages, lines of the text to be changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

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
SEARCHED_TOKENS_MAX = 32_768  # of a longer text, only the end is searched, which has the results and passages


class Guess(NamedTuple):
    """Tokens that may come next, and how often guesses of this kind were right in this text."""

    tokens: list[int]
    acceptance: Acceptance
    predicted: bool = False  # whether the request predicted them


class Copy:
    """What the newest tokens of an answer copy, as far as it is known: from the `text` before them, or from the one
    that the answer is `predicted` to be, as a copy of which it begins.

    A copy goes on where it is for as long as it is right, even if its newest tokens occur elsewhere as well, as those
    of code do. Only then is another place looked for: the last one in the text; in a prediction, the next one behind
    the place that was reached, or else the last one. Texts are strings with a character for each token: to search one
    takes microseconds, and needs no index.
    """

    def __init__(self, text: Sequence[int], predicted: Sequence[int] | None = None) -> None:
        self._text, self._predicted = _spelled(text), None if predicted is None else _spelled(predicted)
        self._begin = len(text)  # of the answer
        self._acceptance = [Acceptance.believed(belief) for belief in BELIEFS]
        self._reached = 0  # the latest source
        self._source: int | None = 0  # where the token stands that comes next, if the copy goes on
        self._lasted = LASTED[-2]  # how many of the newest tokens stand before that place too
        if predicted is None:
            self._find(len(text))

    def guess(self, length: int) -> Guess | None:
        """At most that many tokens; None if nothing is known to be copied."""
        if self._source is None or not (tokens := self._original[self._source : self._source + length]):
            return None
        return Guess([*map(ord, tokens)], self._measured, self._predicted is not None)

    def read(self, answer: Sequence[int]) -> None:
        """All of the answer so far: its new tokens tell how good the guesses were, and whether the copy goes on."""
        known = len(self._text)
        self._text += _spelled(answer[known - self._begin :])
        for place in range(known, len(self._text)):
            if self._source is not None:
                self._follow(self._source, self._text[place])
            if self._source is None:
                self._find(place + 1)
            self._reached = self._source or self._reached

    def _follow(self, source: int, token: str) -> None:
        right = self._original[source : source + 1] == token
        self._measured.observe(1, int(right))
        self._source, self._lasted = (source + 1, self._lasted + 1) if right else (None, 0)

    def _find(self, end: int) -> None:
        """Begin a copy that goes on behind the tokens before `end` of the text, if there is a place for it."""
        self._source, self._lasted = None, 0
        for n in ORDERS:
            newest = self._text[max(0, end - n) : end]
            if len(newest) == n and (place := self._place_of(newest, end)) >= 0:
                self._source, self._lasted = place + n, n
                return

    def _place_of(self, newest: str, end: int) -> int:
        if self._predicted is None:
            return self._text.rfind(newest, max(0, end - SEARCHED_TOKENS_MAX), end - 1)
        place = self._predicted.find(newest, max(0, self._reached - len(newest)))
        return self._predicted.rfind(newest) if place < 0 else place

    @property
    def _original(self) -> str:
        return self._text if self._predicted is None else self._predicted

    @property
    def _measured(self) -> Acceptance:
        return self._acceptance[bisect_right(LASTED, self._lasted)]


def _spelled(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


class PromptLookup:
    """Drafts from the texts that requests predict, or else from their own, instead of a draft model.

    If `predicted_only`, their own are not looked through.
    """

    watches = True

    def __init__(self, *, predicted_only: bool = False) -> None:
        self.predicted_only = predicted_only
        self._copies: dict[Request, list[Copy]] = {}  # of the requests of the last step, in the order of preference
        self._guesses: dict[Request, Guess] = {}
        self.cost = StepCost()  # nothing is observed: a guess takes microseconds

    def look(self, wanted: Sequence[tuple[Request, int]]) -> list[Stream]:
        """Read new tokens, and find how many can be guessed for each request, within its room."""
        self._copies = {request: self._copies.get(request) or self._begun(request) for request, room in wanted if room}
        self._guesses.clear()
        return [self._stream(request, room) for request, room in wanted]

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[int, list[int]]:
        """Guesses by slot, at most as long as requested and as `look` found."""
        guessed = ((request.slot, self._guesses[request].tokens[:length]) for request, length in wanted)
        return {slot: tokens for slot, tokens in guessed if slot is not None}

    def close(self) -> None:
        self._copies.clear()

    def _begun(self, request: Request) -> list[Copy]:
        predicted = [Copy((), request.prediction)] if request.prediction else []
        return predicted if self.predicted_only else [*predicted, Copy(request.prompt)]

    def _stream(self, request: Request, room: int) -> Stream:
        guess = None
        for copy in self._copies.get(request, ()):
            copy.read(request.generated)
            guess = guess or copy.guess(room)
        assert request.slot is not None
        if guess is None:
            return Stream(request.slot, request.acceptance, len(request.generated), missing=0, room=0)
        self._guesses[request] = guess
        return Stream(
            request.slot, guess.acceptance, len(request.generated), 0, len(guess.tokens), predicted=guess.predicted
        )
