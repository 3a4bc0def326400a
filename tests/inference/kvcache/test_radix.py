"""The prefix index against the obvious way of doing it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.kvcache.radix import RadixIndex, SharedPrefixes, common_length
from inference.prompt import CacheScope

tokens = st.lists(st.integers(0, 2), max_size=12)  # few values: many shared beginnings
scopes = st.sampled_from([CacheScope("a"), CacheScope("b"), CacheScope("b", exact=True)])
operations = st.lists(st.tuples(st.integers(0, 4), st.none() | st.tuples(tokens, scopes)), max_size=40)


@given(operations, tokens, scopes)
def test_a_match_is_the_longest_shared_beginning_of_what_is_held(
    changes: list[tuple[int, tuple[list[int], CacheScope] | None]], wanted: list[int], scope: CacheScope
) -> None:
    index, held = RadixIndex(), dict[int, tuple[list[int], CacheScope]]()
    for key, content in changes:
        if content is None:
            index.remove(key)
            held.pop(key, None)
        else:
            index.insert(key, *content)
            held[key] = content
    lengths = {key: common_length(wanted, content) for key, (content, s) in held.items() if s == scope}
    longest = max(lengths.values(), default=0)
    keys, length = index.match(wanted, scope)
    assert length == longest
    assert keys == ({key for key, shared in lengths.items() if shared == longest} if longest else set())
    assert len(index) == len(held)


def test_a_match_may_end_inside_an_edge() -> None:
    index = RadixIndex()
    index.insert(1, [7, 8, 9], CacheScope(""))
    assert index.match([7, 8, 1], CacheScope("")) == ({1}, 2)


def test_another_tenant_never_matches() -> None:
    index = RadixIndex()
    index.insert(1, [7, 8, 9], CacheScope("tenant a"))
    assert index.match([7, 8, 9], CacheScope("tenant b")) == (set(), 0)


def test_no_name_of_a_tenant_is_the_exact_scope_of_another() -> None:
    index = RadixIndex()
    index.insert(1, [7, 8, 9], CacheScope("a", exact=True))
    for name in ("a", "a\0exact", "aexact"):
        assert index.match([7, 8, 9], CacheScope(name)) == (set(), 0)
    assert index.match([7, 8, 9], CacheScope("a", exact=True)) == ({1}, 3)


def test_a_tenant_of_any_name_shares_what_is_common() -> None:
    assert shared([[*COMMON, 7]]).match([*COMMON, 8], CacheScope("b\0exact")) == ({0}, 3)


COMMON = [1, 1, 2]


def shared(contents: list[list[int]]) -> RadixIndex:
    shared_prefixes = SharedPrefixes()
    shared_prefixes.add(COMMON)
    index = RadixIndex(shared_prefixes)
    for key, content in enumerate(contents):
        index.insert(key, content, CacheScope("a"))
    return index


def test_what_is_common_is_shared_between_tenants_and_not_a_token_more() -> None:
    index = shared([[*COMMON, 7, 8, 9]])
    assert index.match([*COMMON, 7, 8, 9], CacheScope("a")) == ({0}, 6)
    assert index.match([*COMMON, 7, 8, 9], CacheScope("b")) == ({0}, 3)
    assert index.match([*COMMON, 7, 8, 9], CacheScope("b", exact=True)) == (set(), 0)


def test_a_part_of_what_is_common_is_not() -> None:
    assert shared([[1, 1, 3, 4]]).match([1, 1, 3, 4], CacheScope("b")) == (set(), 0)
    assert shared([[*COMMON, 7]]).match([1, 1, 3], CacheScope("b")) == (set(), 0)


@given(st.lists(tokens, max_size=6), tokens)
def test_another_tenant_never_matches_beyond_what_is_common(contents: list[list[int]], wanted: list[int]) -> None:
    index = shared(contents)
    both = wanted[:3] == COMMON and any(content[:3] == COMMON for content in contents)
    assert index.match(wanted, CacheScope("b"))[1] == (3 if both else 0)
    for key in range(len(contents)):
        index.remove(key)
    assert index.match(wanted, CacheScope("b")) == (set(), 0)
