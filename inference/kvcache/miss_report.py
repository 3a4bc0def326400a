"""Explains cache misses: how much of a prompt was reused, where the first new token is, and why it is new.

Pure. The engine reports what the cache had (a `Miss`), and the outline of the rendered prompt says which part each
token belongs to. Together they yield a cause that a developer can act on: a date in the system prompt, a changed
message. Tokens that only another tenant's cache has count as new: anything else would leak what that tenant sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inference.kvcache.checkpoints import CHECKPOINT_TOKENS_MIN
from inference.lru_cache import LruCache
from inference.prompt import CacheScope, Cause, Extent, Miss, Part, Verdict

# Tokens of a part that must match for the rest to count as edited: any two texts may start with "You are a".
EDITED_SHARED_MIN = 8
# Bytes compared to detect the same text in different tokens.
SAME_TEXT_BYTES_MIN = 8
SEEN_BLOCK = 16  # tokens: evictions shorter than this are not worth reporting
SEEN_BLOCKS_MAX = 100_000  # about 13 MB for 1.6 million tokens
SEEN_BLOCK_BYTES = 130  # a hash, and an entry of an ordered dictionary


def judge(outline: Sequence[Extent], miss: Miss, pieces: Sequence[bytes]) -> Verdict:
    """`outline` covers the prompt in order; `pieces` are the bytes of every token."""
    tokens = sum([extent.tokens for extent in outline])
    if miss.stateless >= CHECKPOINT_TOKENS_MIN:
        return Verdict(miss.cached, tokens, _place(outline, miss.cached)[0], Cause.NO_CHECKPOINT)
    if miss.known >= tokens - 1:
        return Verdict(miss.cached, tokens)
    part, shared = _place(outline, miss.known)
    return Verdict(miss.cached, tokens, part, _cause(miss, part, shared, pieces))


def _cause(miss: Miss, part: Part, shared: int, pieces: Sequence[bytes]) -> Cause:
    if miss.seen > miss.known:
        return Cause.EVICTED
    if not miss.held:
        return Cause.FIRST_USE
    if _same_text(miss.held, miss.wanted, pieces):
        return Cause.RETOKENISED
    lasting = part in (Part.SYSTEM, Part.TOOLS, Part.HISTORY)
    return Cause.EDITED if lasting and shared >= EDITED_SHARED_MIN else Cause.FIRST_USE


def _place(outline: Sequence[Extent], position: int) -> tuple[Part, int]:
    """The part that a token belongs to, and how many tokens of that part precede it."""
    before = 0
    shared = 0
    part: Part | None = None
    for extent in outline:
        if extent.part is not part:
            part, shared = extent.part, 0
        if position < before + extent.tokens:
            return extent.part, shared + position - before
        before += extent.tokens
        shared += extent.tokens
    raise ValueError(f"no token {position} in a prompt of {before}")


def _same_text(held: Sequence[int], wanted: Sequence[int], pieces: Sequence[bytes]) -> bool:
    """Whether both start with the same text. Their first tokens differ."""
    known = len(pieces)
    a, b = [b"".join([pieces[token] for token in tokens if token < known]) for tokens in (held, wanted)]
    length = min(len(a), len(b))
    return length >= SAME_TEXT_BYTES_MIN and a[:length] == b[:length]


class SeenPrompts:
    """Remembers which prompts were prefilled, long after their KV left every tier: it tells evicted from new.

    Only hashes of blocks are kept, each over everything before it, so the last known block is found by walking.
    """

    def __init__(self) -> None:
        self._blocks: LruCache[int, bool] = LruCache(SEEN_BLOCKS_MAX)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def bytes(self) -> int:
        return SEEN_BLOCK_BYTES * len(self)

    def match(self, prompt: Sequence[int], scope: CacheScope) -> int:
        """Number of tokens of the longest prefix seen before in this scope, in whole blocks."""
        blocks = 0
        for known in (block in self._blocks for block in _hashes(prompt, scope)):
            if not known:
                break
            blocks += 1
        return blocks * SEEN_BLOCK

    def add(self, prompt: Sequence[int], scope: CacheScope) -> None:
        for block in _hashes(prompt, scope):
            self._blocks.put(block, True)


def _hashes(prompt: Sequence[int], scope: CacheScope) -> Iterator[int]:
    chain = hash(scope)
    for start in range(0, len(prompt) - SEEN_BLOCK + 1, SEEN_BLOCK):
        chain = hash((chain, *prompt[start : start + SEEN_BLOCK]))
        yield chain
