"""Shared prefixes: those of prompts that hold nothing of any tenant, such as an agent's instructions with its tools.

Their text comes from the configuration. A prompt that begins with a whole one of them may share its cache with the
prompts of other tenants up to there, and not a token further: part of one is not enough, so that nobody can find out
piece by piece what it says.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.core import CacheScope

SHARED_PREFIXES_MAX = 64  # about the number of agents of a worker; each prompt is compared with all of them


class SharedPrefixes:
    """The event loop adds, the engine's thread reads."""

    def __init__(self) -> None:
        self._beginnings: tuple[tuple[int, ...], ...] = ()

    def add(self, beginning: Sequence[int]) -> None:
        """The latest are kept."""
        others = [other for other in self._beginnings if other != tuple(beginning)]
        self._beginnings = (*others, tuple(beginning))[-SHARED_PREFIXES_MAX:]

    def length(self, tokens: Sequence[int], scope: CacheScope) -> int:
        """How many of the tokens are common to all tenants; none of an exact prompt, which is computed otherwise."""
        return 0 if scope.exact else self.longest(tokens)

    def longest(self, tokens: Sequence[int]) -> int:
        """The length of the longest of them that the tokens begin with."""
        fitting = (len(common) for common in self._beginnings if tuple(tokens[: len(common)]) == common)
        return max(fitting, default=0)
