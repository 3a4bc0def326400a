"""Token ids to text, one at a time: never half a character, never part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Push tokens, get the text that is safe to emit. Once `stopped`, nothing more is emitted."""

    def __init__(self, pieces: Sequence[bytes], stop: Sequence[str] = ()) -> None:
        self._pieces = pieces
        self._stop = tuple(s for s in stop if s)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # may be the start of a stop string
        self.stop_string: str | None = None  # the one that matched

    @property
    def stopped(self) -> bool:
        return self.stop_string is not None

    def push(self, token: int) -> str:
        return self._release(self._decoder.decode(self._pieces[token]))

    def flush(self) -> str:
        """The end of the text: the withheld rest, with U+FFFD for an incomplete character."""
        text = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text if self.stopped else text + held

    def _release(self, text: str) -> str:
        if not self._stop:
            return text
        if self.stopped:
            return ""
        text = self._held + text
        found = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            at, self.stop_string = min(found)
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
