"""Answers in a required format: data from their first character on, whatever marks of calls or thoughts they hold."""

from __future__ import annotations

from agents.parser.choose import Parser
from agents.parser.deltas import ParserEvent, Text


class FormattedParser:
    """Leaves thoughts and calls to the dialect's parser until the answer begins."""

    def __init__(self, dialect: Parser) -> None:
        self._dialect = dialect
        self._answering = False

    def feed(self, text: str) -> list[ParserEvent]:
        events: list[ParserEvent] = []
        for at, character in enumerate(text):
            if self._answering:
                return [*events, Text(text[at:])]
            said = self._dialect.feed(character)
            self._answering = any(isinstance(event, Text) and event.text.strip() for event in said)
            events += said
        return events

    def finish(self) -> list[ParserEvent]:
        return [] if self._answering else self._dialect.finish()
