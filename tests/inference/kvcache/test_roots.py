"""When a beginning counts as shared."""

from __future__ import annotations

from inference.kvcache.roots import Roots
from inference.scope import CacheScope

SYSTEM = list(range(70))
ANYONE = CacheScope("")


def test_the_second_way_to_go_on_makes_a_root_once() -> None:
    roots = Roots()
    told = [roots.left([*SYSTEM, question], len(SYSTEM), ANYONE) for question in (1, 2, 3)]
    assert told == [False, True, False]


def test_the_same_question_again_is_no_second_way() -> None:
    roots = Roots()
    assert not any(roots.left([*SYSTEM, 1], len(SYSTEM), ANYONE) for _ in range(3))


def test_places_within_one_block_are_one() -> None:
    roots = Roots()
    assert not roots.left([*SYSTEM, 1, 2], len(SYSTEM), ANYONE)
    assert roots.left([*SYSTEM, 1, 3], len(SYSTEM) + 1, ANYONE)


def test_tenants_and_short_beginnings_do_not_add_up() -> None:
    roots = Roots()
    assert not any(roots.left([*SYSTEM, n], len(SYSTEM), CacheScope(str(n))) for n in range(3))
    assert not any(roots.left([1, 2, n], 2, ANYONE) for n in range(3))
