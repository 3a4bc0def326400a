"""What the caches of the house promise of their bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.lru_cache import LruCache


def test_what_was_read_outlives_what_was_not() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 0)
    cache.put("b", 1)
    assert (cache.get("a"), cache.get("c"), "b" in cache, cache.items()[0]) == (0, None, True, ("b", 1))
    cache.put("c", 2)
    assert (list(cache), len(cache), cache.size) == (["a", "c"], 2, 2)


def test_a_value_larger_than_the_cache_takes_nothing_else_out_but_the_one_it_replaces() -> None:
    cache: LruCache[str, str] = LruCache(3, lambda _, text: len(text))
    cache.put("a", "x")
    cache.put("b", "y")
    cache.put("b", "long")
    assert cache.items() == [("a", "x")]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 9), st.booleans())))
def test_the_sizes_add_up_and_whoever_looks_after_entries_hears_of_each_that_leaves(
    calls: list[tuple[str, int, bool]],
) -> None:
    beside: dict[str, int] = {}
    cache: LruCache[str, int] = LruCache(12, lambda _, size: size, lambda key, _: beside.pop(key))
    for key, size, is_put in calls:
        if is_put:
            cache.put(key, size)
            beside[key] = size
        else:
            cache.pop(key)
        assert (dict(cache.items()), sum(beside.values())) == (beside, cache.size)
        assert cache.size <= cache.size_max
