"""The budget for the reasoning of one answer: when its tokens are spent, or an answer is wanted at once, the tokens of
the closing mark come next in place of drawn ones. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from inference.generation import ReasoningLimit


class ReasoningBudget:
    """Where the reasoning of one answer stands. Used by the engine's thread; only `ending` is set from elsewhere.

    Marks are found in the text of the tokens, as they may be spelled in several; the text after the last mark is all
    that is kept of it."""

    def __init__(
        self, limit: ReasoningLimit, pieces: Sequence[bytes], end_tokens: frozenset[int] = frozenset()
    ) -> None:
        self._limit, self._end_tokens = limit, end_tokens
        self._open, self._close = limit.open.encode(), limit.close.encode()
        self._pieces = pieces
        self._within = limit.begun
        self._spent = 0  # tokens of reasoning and its marks, over all thoughts of the answer
        self._since = 0  # tokens behind the last thought
        self._read = 0  # tokens of the answer that were looked at
        self._tail = b""  # the newest text, as long as a mark could begin in it
        self._next: list[int] = []  # of the closing mark
        self._answer_at: int | None = None  # the place of the first token behind a mark that was not drawn
        self._refused = False
        self.ending = False  # an answer is wanted: every thought ends at once

    @property
    def interferes(self) -> bool:
        """Whether the next token may be another than the drawn one."""
        return (self._limit.tokens is not None or self.ending) and not self._refused

    def due(self, generated: Sequence[int]) -> int | None:
        """The token that must come behind the `generated` ones; None: any that is drawn."""
        if not self.interferes:
            return None
        begun_elsewhere = not self._read and bool(generated)
        for token in generated[self._read :]:
            self._take(self._pieces[token])
        self._read = len(generated)
        if not self._next and self._is_over and (self._within or begun_elsewhere):
            rest = self._rest_of_mark(generated)
            if rest is not None:
                self._next, self._answer_at = rest, len(generated) + len(rest)
        return self._next.pop(0) if self._next else None

    def banned(self, generated: Sequence[int]) -> frozenset[int]:
        """The tokens that must not come behind the `generated` ones: whoever was interrupted in a thought often ends
        the turn there, and the answer would be empty."""
        return self._end_tokens if len(generated) == self._answer_at else frozenset()

    def _rest_of_mark(self, generated: Sequence[int]) -> list[int] | None:
        """Without the tokens that are there already, of an answer that was begun elsewhere; None: none is due."""
        ends = self._limit.ends
        begun = 0 if self._limit.tokens is None else self._spent + self._since - self._limit.tokens
        if 0 < begun <= len(ends) and tuple(generated[-begun:]) == ends[:begun]:
            return list(ends[begun:])
        return list(ends) if self._within else None

    def refuse(self) -> None:
        """A grammar does not allow the mark: the thought goes on."""
        self._refused, self._answer_at = True, None

    @property
    def _is_over(self) -> bool:
        return self.ending or (self._limit.tokens is not None and self._spent >= self._limit.tokens)

    def _take(self, piece: bytes) -> None:
        self._spent += self._within
        self._since = 0 if self._within else self._since + 1
        mark = self._close if self._within else self._open
        text = self._tail + piece
        if mark in text:
            self._within = not self._within
            text = text.rpartition(mark)[2]
        self._tail = text[-max(len(self._open), len(self._close)) :]
