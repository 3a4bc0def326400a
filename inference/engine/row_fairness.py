"""Turns between tenants where rows are dear: who asks for little does not pay for the rows of who asks for much.

A step with the rows of all costs each of them what all take, so a few streams beside many get a few rows of a slow
step. A tenant with fewer requests than another one, and less of the device's time so far, has steps to itself, as many
as fit into the difference: deficit round robin (Shreedhar & Varghese, SIGCOMM '95), a fair queue with seconds for bytes
and the step of all as its round. Where rows are cheap, nothing of this is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple


class Share(NamedTuple):
    """What a tenant asks for: so many requests, and a step with its rows alone takes so long at the least."""

    requests: int
    alone_s: float


class RowFairness:
    """Pure. Between two steps with the rows of all, as much time as the last of them took, or `still_s`, goes to steps
    with fewer, and what the last of these takes longer. Who was away comes back with `still_s` of credit at the most.
    """

    def __init__(self, still_s: float) -> None:
        self._still_s = still_s
        self._used_s: dict[str, float] = {}  # by tenant; those that are away are forgotten once they have all credit
        self._present: frozenset[str] = frozenset()
        self._left_s = still_s  # for steps without the rows of all
        self._is_alone = False

    def __len__(self) -> int:
        """Tenants that are known."""
        return len(self._used_s)

    def due_s(self, shares: Mapping[str, Share]) -> dict[str, float]:
        """Which of the tenants that compute have the next step to themselves, and for how long; none: it has the rows
        of all."""
        self._meet(shares)
        due = {}
        for tenant, share in shares.items():
            more = [self._used_s[other] for other in shares if shares[other].requests > share.requests]
            lag_s = min(self._left_s, max(more, default=-inf) - self._used_s[tenant])
            if lag_s >= share.alone_s:
                due[tenant] = lag_s
        self._is_alone = bool(due)
        return due

    def charge(self, took_s: float, rows: Mapping[str, int]) -> None:
        """The step took so long, with so many rows of each tenant."""
        total = sum(rows.values())
        for tenant in self._used_s.keys() & rows.keys():
            self._used_s[tenant] += took_s * rows[tenant] / total
        self._left_s = self._left_s - took_s if self._is_alone else max(self._still_s, took_s)

    def _meet(self, shares: Mapping[str, Share]) -> None:
        used = self._used_s
        stayed = [used[tenant] for tenant in self._present & shares.keys()]
        lowest = min(stayed, default=max(used.values(), default=0.0)) - self._still_s
        self._used_s = {tenant: seconds for tenant, seconds in used.items() if seconds > lowest}
        for tenant in shares:
            self._used_s.setdefault(tenant, lowest)
        self._present = frozenset(shares)
