"""The input of a custom tool, read from the arguments of its call while they are generated."""

from __future__ import annotations

import json
import re

from agents.function_tool import INPUT
from agents.message import storable

_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
HEAD_CHARS_MAX = 100  # more white space than any model writes; the input then comes in one piece, at the end
# Whole characters and escapes: one half of a surrogate pair waits for the other.
_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89abAB])[0-9a-fA-F]{4})*'
)


class InputText:
    """Decodes the value in `{"input": "..."}`."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._unread = ""
        self._begun = False
        self._over = False

    def feed(self, piece: str) -> str:
        """The text that this piece of JSON completes."""
        if self._over:
            return ""
        self._unread += piece
        if not self._begun and not self._begin():
            return ""
        whole = _WHOLE.match(self._unread)
        length = whole.end() if whole else 0
        text = storable(json.loads(f'"{self._unread[:length]}"', strict=False))
        self._unread = self._unread[length:]
        self._over = self._unread.startswith('"')
        self.sent.append(text)
        return text

    def rest(self, whole: str) -> str:
        """What of the whole input was not sent: a part that was no such JSON, or ended within a character."""
        sent = "".join(self.sent)
        return whole[len(sent) :] if whole.startswith(sent) else ""

    def _begin(self) -> bool:
        head = _HEAD.match(self._unread)
        if head:
            self._unread, self._begun = self._unread[head.end() :], True
        self._over = head is None and len(self._unread) > HEAD_CHARS_MAX
        return self._begun
