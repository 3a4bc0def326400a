"""The radix index: which slots hold which tokens, found by the longest shared prefix.

A radix tree (compressed trie) over token ids, as in SGLang's RadixAttention (arXiv 2312.07104), matched token by token:
a match may end inside an edge. The scope is part of the path to its tokens, either at the start or behind a prefix that
all tenants share, so one tenant's text never matches another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from inference.prompt import CacheScope

Step: TypeAlias = int | CacheScope  # a token, or the scope that separates tenants


@dataclass(slots=True, eq=False)
class _Node:
    """`holders` are the keys whose tokens include this node's whole edge."""

    edge: list[Step]
    holders: set[int] = field(default_factory=set)
    children: dict[Step, _Node] = field(default_factory=dict)


def common_length(a: Sequence[Step], b: Sequence[Step]) -> int:
    """Length of the shared prefix of two lists."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:  # the common case, compared at C speed
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])


class RadixIndex:
    """Keys (slot numbers) with their tokens. Inserting a key again replaces its tokens."""

    def __init__(self, shared_prefixes: SharedPrefixes | None = None) -> None:
        self._shared_prefixes = SharedPrefixes() if shared_prefixes is None else shared_prefixes
        self._root = _Node([])
        self._held: dict[int, list[Step]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def insert(self, key: int, tokens: Sequence[int], scope: CacheScope) -> None:
        self.remove(key)
        rest, _ = self._path(tokens, scope)
        self._held[key] = rest
        node = self._root
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                node.children[rest[0]] = _Node(rest, {key})
                return
            shared = common_length(rest, child.edge)
            if shared < len(child.edge):
                child = self._split(node, child, shared)
            child.holders.add(key)
            node, rest = child, rest[shared:]

    def remove(self, key: int) -> None:
        """Remove a key; does nothing if it is absent."""
        node, rest = self._root, self._held.pop(key, [])
        while rest:
            child = node.children[rest[0]]
            child.holders.discard(key)
            if not child.holders:
                del node.children[rest[0]]
                return
            node, rest = child, rest[len(child.edge) :]

    def match(self, tokens: Sequence[int], scope: CacheScope) -> tuple[set[int], int]:
        """The keys that share the longest prefix with `tokens`, and its length; (empty, 0) if there are none."""
        (rest, common), node, length = self._path(tokens, scope), self._root, 0
        holders: set[int] = set()
        while rest and (child := node.children.get(rest[0])):
            shared = common_length(rest, child.edge)
            holders, length = child.holders, length + shared
            if shared < len(child.edge):
                break
            node, rest = child, rest[shared:]
        length -= int(length > common)  # the scope is not a token
        return (set(holders), length) if length else (set(), 0)

    def within(self, tokens: Sequence[int], scope: CacheScope) -> list[int]:
        """The keys whose tokens are all a prefix of these, the longest first."""
        rest, node, depth = self._path(tokens, scope)[0], self._root, 0
        found: list[int] = []
        while rest and (child := node.children.get(rest[0])):
            if common_length(rest, child.edge) < len(child.edge):
                break
            depth += len(child.edge)
            found += [key for key in child.holders if len(self._held[key]) == depth]
            node, rest = child, rest[len(child.edge) :]
        return found[::-1]

    def _path(self, tokens: Sequence[int], scope: CacheScope) -> tuple[list[Step], int]:
        """The tokens with the scope inserted, and its position. What all tenants share needs none."""
        common = self._shared_prefixes.length(tokens, scope)
        return ([*tokens[:common], scope, *tokens[common:]] if common < len(tokens) else list(tokens)), common

    @staticmethod
    def _split(parent: _Node, child: _Node, at: int) -> _Node:
        """Split an edge in two; returns the new upper node."""
        upper = _Node(child.edge[:at], set(child.holders), {child.edge[at]: child})
        child.edge = child.edge[at:]
        parent.children[upper.edge[0]] = upper
        return upper


SHARED_PREFIXES_MAX = 64  # about the number of a worker's agents; each prompt is compared with all of them


class SharedPrefixes:
    """Prefixes of prompts with no tenant's data, such as an agent's instructions with its tools.

    Their text comes from the configuration. A prompt that starts with a complete one may share the cache of this prefix
    with other tenants' prompts, and not one token more. A partial match is not enough, so that nobody can find out
    piece by piece what it says.

    Written by the event loop, read by the engine's thread."""

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
