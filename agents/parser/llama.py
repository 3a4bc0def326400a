"""Tool calls as Llama 3 writes them: an answer that is `{"name": ..., "parameters": {...}}`, or several with `;`.

There is no mark but an optional <|python_tag|>, so an object is held back until it can only be a call: it has a name
and its parameters have begun. Any other JSON is the answer itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from agents.parser.call import BrokenCall, CallReader
from agents.parser.deltas import ParserEvent, Text
from agents.parser.markup import SEAM, MarkupParser, Mode

PYTHON_TAG = "<|python_tag|>"
ARGUMENTS = ("parameters", "arguments")
KEYS = frozenset({*ARGUMENTS, "name", "type", "id"})
BETWEEN_CALLS = "; \t\r\n"


class LlamaParser(MarkupParser):
    marks = (PYTHON_TAG,)
    _fresh = True  # a call may begin: nothing was written yet, or a call ended last
    _candidate: CallReader | None = None
    _seen: list[str]  # of the candidate

    def _passes(self, text: str) -> bool:
        return not self._fresh and self._candidate is None and super()._passes(text)

    def _step(self, character: str) -> Iterator[ParserEvent]:
        if self._candidate is not None:
            yield from self._consider(self._candidate, character)
        else:
            yield from super()._step(character)

    def _plain(self, character: str) -> Iterator[ParserEvent]:
        if self._mode is not Mode.TEXT or not self._fresh:
            yield from super()._plain(character)
        elif character == "{":
            self._candidate, self._seen = CallReader(ARGUMENTS), []
            yield from self._consider(self._candidate, character)
        elif character not in BETWEEN_CALLS or not self._calls:
            self._fresh = character.isspace()
            yield Text(character)

    def _consider(self, candidate: CallReader, character: str) -> Iterator[ParserEvent]:
        self._seen.append(character)
        try:
            candidate.feed(character)
        except BrokenCall:
            yield from self._release()
            return
        if candidate.name is not None and candidate.in_arguments:
            self._candidate = None
            self._open(CallReader(ARGUMENTS))
            yield from self._write("".join(self._seen))
        elif candidate.complete or (candidate.key is not None and candidate.key not in KEYS):
            yield from self._release()

    def _release(self) -> Iterator[ParserEvent]:
        """The candidate is text."""
        self._candidate, self._fresh = None, False
        for character in self._seen:
            yield from self._step(character)

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        if self._mode is Mode.TEXT:
            yield Text(SEAM)
            self._open(CallReader(ARGUMENTS))

    def _ended(self, *, broken: bool) -> None:
        self._fresh = True
        self._mode = Mode.HIDDEN if broken else Mode.TEXT  # the rest of a broken call is not an answer

    def finish(self, *, in_call: bool = False) -> list[ParserEvent]:
        seen = [] if self._candidate is None or in_call else list(self._release())
        return [*seen, *super().finish(in_call=in_call)]
