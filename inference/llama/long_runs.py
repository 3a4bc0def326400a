"""Where a text is cut before a BPE vocabulary reads it. Pure.

llama.cpp splits a text into words by the regular expressions of the vocabulary, most of them by std::regex, which
recurses for every character that a match takes: about 340 bytes of stack each. A word of 25,000 letters overflows the
8 MiB of a thread and ends the process; so do as many blanks, slashes or, for some vocabularies, words without a comma.
Text that goes on for too long without a place that no expression reaches across is therefore cut, where that can be at
the end of a word, which changes no token for most vocabularies. Elsewhere the tokens beside a cut may be others.
"""

from __future__ import annotations

import re

WINDOW_CHARS = 1024  # a match is less than twice as long: 700 KB of stack, where some systems give a thread 1 MiB

# An attacker chooses the characters: these are the ones that all expressions take for the same.
_UNCROSSED = re.compile(r"[!-.:-@\[-^`{-~] [^\W_]|[\r\n] *[^\W_]")
_WORD_END = re.compile(r"[^\W\d_](?=[!-&(-/:-@\[-^`{-~、。，！？；：])")


def cuts(text: str) -> list[int]:
    """One in each window that a match might reach across. Linear, and quick: in ordinary text, a sentence or a line
    tells.
    """
    windows = range(0, len(text) - WINDOW_CHARS + 1, WINDOW_CHARS)
    return [_cut(text, start, start + WINDOW_CHARS) for start in windows if not _is_crossed_by_none(text, start)]


def _is_crossed_by_none(text: str, start: int) -> bool:
    return _UNCROSSED.search(text, start, start + WINDOW_CHARS) is not None


def _cut(text: str, start: int, end: int) -> int:
    """The last end of a word, or the end of the window."""
    last = end
    for match in _WORD_END.finditer(text, start, end):
        last = match.end()
    return last
