"""Who gets a place, and who makes room for whom."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from worker.edge.guard import CONNECTIONS_MAX, CONNECTIONS_MIN, Connections, address_of, limit_for


@dataclass(eq=False)
class Caller:
    address: str = "a"
    evicted: bool = field(default=False)

    def evict(self) -> None:
        self.evicted = True


def test_the_one_that_has_waited_longest_makes_room() -> None:
    connections, first, second = Connections(2, 2), Caller(), Caller()
    assert connections.admit(first) and connections.admit(second)
    connections.serve(first)
    connections.wait(first)  # answered: it waits again, from now on
    assert connections.admit(Caller())
    assert (first.evicted, second.evicted, len(connections)) == (False, True, 2)


def test_over_the_limit_of_all_the_one_that_has_waited_longest_makes_room_whoever_it_is() -> None:
    connections, first = Connections(2, 2), Caller("a")
    assert connections.admit(first) and connections.admit(Caller("b")) and connections.admit(Caller("c"))
    assert (first.evicted, len(connections)) == (True, 2)


def test_who_is_served_keeps_the_place() -> None:
    connections, served = Connections(1, 1), Caller()
    assert connections.admit(served)
    connections.serve(served)
    assert not connections.admit(Caller())
    connections.leave(served)
    assert connections.admit(Caller())


def test_over_the_limit_of_an_address_only_its_own_make_room() -> None:
    connections, mine, other = Connections(3, 2), Caller("b"), Caller("a")
    assert connections.admit(other) and connections.admit(mine) and connections.admit(Caller("b"))
    assert connections.admit(Caller("b"))
    assert (mine.evicted, other.evicted) == (True, False)


@pytest.mark.parametrize(
    ("descriptors", "limit"), [(1024, 768), (256, CONNECTIONS_MIN), (0, CONNECTIONS_MIN), (2**20, CONNECTIONS_MAX)]
)
def test_descriptors_are_left_for_everything_else(descriptors: int, limit: int) -> None:
    assert limit_for(descriptors) == limit


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("127.0.0.1", 5), "127.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("2001:db8:1:2:3:4:5:6", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        ("", ""),
        (None, ""),
    ],
)
def test_an_address_is_what_one_customer_of_a_provider_has(peer: object, address: str) -> None:
    assert address_of(peer) == address
