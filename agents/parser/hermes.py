"""Tool calls as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` amid text.

A call is complete when its JSON object closes: from then on it may run. One that is cut off is broken, and so is one
that is not valid JSON; parsing continues after its closing tag.
"""

from __future__ import annotations

from collections.abc import Iterator

from agents.parser.call import CallReader
from agents.parser.deltas import ParserEvent, Text
from agents.parser.markup import SEAM, MarkupParser, Mode

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# Behind a call, a tool result that the model makes up is not text for the user. Without one, it is the answer.
RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"


class HermesParser(MarkupParser):
    marks = (OPEN, CLOSE, RESULT_OPEN, RESULT_CLOSE)
    _until = ""  # the mark after which text continues

    def _mark(self, mark: str) -> Iterator[ParserEvent]:
        if self._until == mark:
            self._mode, self._until = Mode.TEXT, ""
        elif mark == OPEN and self._until != RESULT_CLOSE:
            self._until = CLOSE
            self._open(CallReader())
        elif not self._until:
            yield Text(SEAM)
            if mark == RESULT_OPEN and self._calls:
                self._mode, self._until = Mode.HIDDEN, RESULT_CLOSE
