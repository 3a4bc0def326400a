"""Shares between tenants."""

from __future__ import annotations

from inference.engine.fairness import IDLE_TENANTS_MAX, QUANTUM, Shares


def test_the_least_served_has_the_smallest_count() -> None:
    shares = Shares()
    for tenant in ("a", "b"):
        shares.join(tenant)
    shares.charge("a", 100)
    assert shares.served("a") > shares.served("b")


def test_being_away_earns_no_credit() -> None:
    shares = Shares()
    for tenant in ("a", "b"):
        shares.join(tenant)
    shares.leave("b")
    shares.charge("a", 100)
    shares.join("b")
    assert shares.served("b") == 100


def test_being_away_forgives_no_debt() -> None:
    shares = Shares()
    for tenant in ("a", "b"):
        shares.join(tenant)
    shares.charge("a", 100)
    shares.leave("a")
    shares.join("a")
    assert shares.served("a") == 100


def test_when_everybody_is_gone_all_start_anew() -> None:
    shares = Shares()
    shares.join("a")
    shares.charge("a", 100)
    shares.leave("a")
    assert shares.served("a") == 0


def test_a_worker_that_is_never_idle_does_not_remember_every_tenant_it_had() -> None:
    shares = Shares()
    shares.join("patient")
    for number in range(3 * IDLE_TENANTS_MAX):
        shares.join(f"passer-by {number}")
        shares.charge(f"passer-by {number}", 10)
        shares.leave(f"passer-by {number}")
    assert len(shares) == 1 + IDLE_TENANTS_MAX


def test_who_was_served_most_is_remembered_longest() -> None:
    shares = Shares()
    for tenant in ("patient", "greedy"):
        shares.join(tenant)
    shares.charge("greedy", 1_000_000)
    shares.leave("greedy")
    for number in range(2 * IDLE_TENANTS_MAX):
        shares.join(f"passer-by {number}")
        shares.leave(f"passer-by {number}")
    assert shares.served("greedy") == 1_000_000


def test_who_asks_for_more_gives_way_until_the_other_was_served_clearly_more() -> None:
    shares = Shares()
    for tenant in ("large", "large", "small"):
        shares.join(tenant)
    assert shares.gives_way("large", to="small")
    assert not shares.gives_way("small", to="large")
    shares.charge("small", QUANTUM)
    assert not shares.gives_way("large", to="small")


def test_places_are_shared_by_those_who_are_there() -> None:
    shares = Shares()
    assert shares.place_share(8) == 8
    for tenant in ("a", "b", "c"):
        shares.join(tenant)
    assert shares.place_share(8) == 2
    assert shares.place_share(1) == 1
