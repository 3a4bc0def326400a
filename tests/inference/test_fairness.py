"""Shares between tenants."""

from __future__ import annotations

from inference.fairness import Shares


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
