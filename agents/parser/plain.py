"""Text that is no answer to a chat: what continues a prompt that no template has written."""

from __future__ import annotations

from agents.parser.deltas import ParserEvent, Text


class PlainParser:
    """All of it is text, whatever it looks like."""

    def feed(self, text: str) -> list[ParserEvent]:
        return [Text(text)] if text else []

    def finish(self) -> list[ParserEvent]:
        return []
