"""Shared prefixes: prefixes of prompts with no tenant's data, such as an agent's instructions with its tools.

Their text comes from the configuration. A prompt that starts with a complete one may share the cache of this prefix
with other tenants' prompts, and not one token more. A partial match is not enough, so that nobody can find out piece by
piece what it says.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.prompt_cache import CacheScope

SHARED_PREFIXES_MAX = 64  # about the number of a worker's agents; each prompt is compared with all of them


class SharedPrefixes:
    """Written by the event loop, read by the engine's thread."""

    def __init__(self) -> None:
        self._beginnings: tuple[tuple[int, ...], ...] = ()

    def add(self, beginning: Sequence[int]) -> None:
        """Only the latest are kept."""
        others = [other for other in self._beginnings if other != tuple(beginning)]
        self._beginnings = (*others, tuple(beginning))[-SHARED_PREFIXES_MAX:]

    def length(self, tokens: Sequence[int], scope: CacheScope) -> int:
        """How many of the tokens all tenants share; 0 for an exact prompt, which is computed differently."""
        return 0 if scope.exact else self.longest(tokens)

    def longest(self, tokens: Sequence[int]) -> int:
        """Length of the longest shared prefix that the tokens start with."""
        fitting = (len(common) for common in self._beginnings if tuple(tokens[: len(common)]) == common)
        return max(fitting, default=0)
