"""The open connections: limits in total and per address, and which one is evicted for a new one. Pure."""

from __future__ import annotations

import ipaddress
import resource
from collections import Counter
from typing import Protocol

# Database, models, document readers, tool servers and spooled uploads need their descriptors whatever comes in.
RESERVED_DESCRIPTORS = 256
CONNECTIONS_MIN = 16  # a floor for machines with too few descriptors
CONNECTIONS_MAX = 4096  # an idle one costs some kilobytes; more than that belong behind a balancer
NETWORK_BITS = 64  # of an IPv6 address: the prefix of one customer of a provider


class Member(Protocol):
    """An open connection. One that waits for a request may be closed in favour of another."""

    @property
    def address(self) -> str: ...

    def evict(self) -> None: ...


class Connections:
    """Connections that wait for a request, longest first, and those being served.

    Over a limit, a new connection takes the place of the one that has waited longest: one with half a request, or none,
    never keeps out a complete one. A new connection is refused only if all others are being served.
    """

    def __init__(self, limit: int, address_limit: int) -> None:
        self._limit = limit
        self._address_limit = address_limit
        self._waiting: dict[Member, None] = {}  # longest first
        self._open: Counter[str] = Counter()

    def __repr__(self) -> str:
        return (
            f"<Connections {len(self)} of {self._limit} open | {len(self._waiting)} wait | {len(self._open)} addresses>"
        )

    def __len__(self) -> int:
        return self._open.total()

    def admit(self, newcomer: Member) -> bool:
        """Add a connection, which waits for its request; False when there is no room for it."""
        if self._open[newcomer.address] >= self._address_limit:
            place = self._longest_waiting(newcomer.address)
        elif len(self) >= self._limit:
            place = self._longest_waiting()
        else:
            place = newcomer
        if place is None:
            return False
        if place is not newcomer:
            self.leave(place)
            place.evict()
        self._open[newcomer.address] += 1
        self._waiting[newcomer] = None
        return True

    def _longest_waiting(self, address: str | None = None) -> Member | None:
        return next((each for each in self._waiting if address in (None, each.address)), None)

    def serve(self, member: Member) -> None:
        """Its request has arrived."""
        self._waiting.pop(member, None)

    def wait(self, member: Member) -> None:
        """Its request was answered."""
        self._waiting[member] = None

    def leave(self, member: Member) -> None:
        self._waiting.pop(member, None)
        self._open[member.address] -= 1
        if not self._open[member.address]:
            del self._open[member.address]


def limit_for(descriptors: int) -> int:
    """How many connections a process with this limit of file descriptors can hold and still open files."""
    return min(max(descriptors - RESERVED_DESCRIPTORS, CONNECTIONS_MIN), CONNECTIONS_MAX)


def descriptors() -> int:
    """The descriptor limit of this process (RLIMIT_NOFILE)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX + RESERVED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def address_of(peer: object) -> str:
    """The key that a connection is counted under: an IPv4 address, or the network of an IPv6 address; "" for a local
    socket.

    `peer` is the transport's `peername`.
    """
    host = peer[0] if isinstance(peer, tuple) and peer else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, NETWORK_BITS), strict=False))
    return str(address)
