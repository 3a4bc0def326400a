"""Remembers which prompts were read, long after their KV has left every tier: tells what was evicted from what is new.

Only hashes of blocks are kept, each over everything before it, so that the deepest known block is found by walking.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from inference.scope import CacheScope

BLOCK = 16  # tokens: evictions shorter than this are not worth a word
BLOCKS_MAX = 100_000  # about 10 MB for 1.6 million tokens


class SeenPrompts:
    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()  # least recently seen first

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, prompt: Sequence[int], scope: CacheScope) -> int:
        """How many tokens at the beginning were seen before in this scope, in whole blocks."""
        blocks = 0
        for known in (block in self._blocks for block in _hashes(prompt, scope)):
            if not known:
                break
            blocks += 1
        return blocks * BLOCK

    def add(self, prompt: Sequence[int], scope: CacheScope) -> None:
        for block in _hashes(prompt, scope):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > BLOCKS_MAX:
            self._blocks.popitem(last=False)


def _hashes(prompt: Sequence[int], scope: CacheScope) -> Iterator[int]:
    chain = hash(scope)
    for start in range(0, len(prompt) - BLOCK + 1, BLOCK):
        chain = hash((chain, *prompt[start : start + BLOCK]))
        yield chain
