"""Where to cut a text before a BPE vocabulary tokenises it. Pure.

llama.cpp splits a text into words by the vocabulary's regular expressions, mostly with std::regex, which recurses for
every character of a match: about 340 bytes of stack each. A word of 25,000 letters overflows a thread's 8 MiB of stack
and ends the process; so do as many blanks, slashes or, for some vocabularies, words without a comma. Text that runs too
long without a point that no expression matches across is therefore cut, if possible at the end of a word, which changes
no token with most vocabularies. Elsewhere the tokens beside a cut may differ.
"""

from __future__ import annotations

import re

WINDOW_CHARS = 1024  # a match is less than twice as long: 700 KB of stack, where some systems give a thread 1 MiB

# An attacker chooses the characters, so only those count that all expressions treat alike.
_UNCROSSED = re.compile(r"[!-.:-@\[-^`{-~] [^\W_]|[\r\n] *[^\W_]")
_WORD_END = re.compile(r"[^\W\d_](?=[!-&(-/:-@\[-^`{-~、。，！？；：])")


def cuts(text: str) -> list[int]:
    """One cut in each window that a match might cross. Linear, and fast: in ordinary text, the first sentence or line
    ends the search.
    """
    windows = range(0, len(text) - WINDOW_CHARS + 1, WINDOW_CHARS)
    return [_cut(text, start, start + WINDOW_CHARS) for start in windows if not _is_crossed_by_none(text, start)]


def _is_crossed_by_none(text: str, start: int) -> bool:
    return _UNCROSSED.search(text, start, start + WINDOW_CHARS) is not None


def _cut(text: str, start: int, end: int) -> int:
    """The last end of a word in the window, or the end of the window."""
    last = end
    for match in _WORD_END.finditer(text, start, end):
        last = match.end()
    return last
