"""Stop strings end an answer. They are looked for in its visible text only, so that neither reasoning nor the markup of
calls can be cut by them."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Push pieces of a text, get what is safe to show: no stop string, and no beginning of one."""

    def __init__(self, strings: Sequence[str] = ()) -> None:
        self._strings = tuple(string for string in strings if string)
        self.held = ""  # may be the start of a stop string
        self.met: str | None = None  # the one that ended the text
        self.rest = ""  # what was pushed from its beginning on

    def __bool__(self) -> bool:
        return bool(self._strings)

    def push(self, text: str) -> str:
        """What precedes the first stop string, once one is met: nothing more is shown then."""
        if self.met is not None:
            return ""
        text = self.held + text
        found = [(at, string) for string in self._strings if (at := text.find(string)) >= 0]
        if found:
            at, self.met = min(found)
            self.held, self.rest = "", text[at:]
            return text[:at]
        keep = max((_overlap(text, string) for string in self._strings), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The withheld rest, where the text ends or is interrupted."""
        held, self.held = self.held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `string`."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)
