"""Text that continues a raw prompt, without a chat template."""

from __future__ import annotations

from agents.parser.deltas import ParserEvent, Text


class PlainParser:
    """Everything is text, whatever it looks like."""

    def feed(self, text: str) -> list[ParserEvent]:
        return [Text(text)] if text else []

    def finish(self, *, in_call: bool = False) -> list[ParserEvent]:
        return []
