"""Token ids to text, one at a time: never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Push tokens, get the text that they complete."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._pieces[token])

    def flush(self) -> str:
        """The end of the text: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)
