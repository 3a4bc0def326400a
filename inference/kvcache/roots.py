"""Roots: beginnings that several conversations share, such as a system prompt with its tools.

A prompt that leaves what is cached in its middle says that its beginning is shared. When different prompts left at the
same place, the beginning is worth more than any one conversation. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from inference.kvcache.disk import chain
from inference.scope import CacheScope

USES = 2  # different ways to go on after a beginning, besides the one that it had first
TELLING = 8  # tokens that tell one way from another: a question that is asked again is no second way
BEGINNINGS_MAX = 1000


class Roots:
    def __init__(self) -> None:
        self._ways: OrderedDict[tuple[CacheScope, bytes], set[tuple[int, ...]]] = OrderedDict()

    def left(self, prompt: Sequence[int], at: int, scope: CacheScope) -> bool:
        """A prompt goes its own way after `at` tokens. True when these have just become a root."""
        blocks = chain(prompt[:at], b"")
        if not blocks:
            return False
        beginning = (scope, blocks[-1])
        ways = self._ways.setdefault(beginning, set())
        self._ways.move_to_end(beginning)
        if len(self._ways) > BEGINNINGS_MAX:
            self._ways.popitem(last=False)
        way = tuple(prompt[at : at + TELLING])
        if way in ways or len(ways) == USES:
            return False
        ways.add(way)
        return len(ways) == USES
