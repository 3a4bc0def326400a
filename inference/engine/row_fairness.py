"""Fairness between tenants where the time of a step grows with its rows: a tenant with few streams does not pay for the
rows of one with many.

In a step with the rows of all tenants, each of them waits for all rows, so a few streams beside many get only a few
rows of a slow step. A tenant with fewer requests than another one and less device time so far gets steps to itself, as
many as fit into the difference: deficit round robin (Shreedhar & Varghese, SIGCOMM '95), with seconds in place of bytes
and the step of all tenants as the round. Where rows are cheap, none of this is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple


class Share(NamedTuple):
    """The demand of a tenant: its number of requests, and the least time of a step with its rows alone."""

    requests: int
    alone_s: float


class RowFairness:
    """Pure. Between two steps with all rows, steps with fewer rows get as much time as the last step with all rows
    took, or `still_s`; the last of them may exceed it. A tenant returns after an absence with at most `still_s` of
    credit.
    """

    def __init__(self, still_s: float) -> None:
        self._still_s = still_s
        self._used_s: dict[str, float] = {}  # by tenant; an absent tenant is forgotten once it has full credit
        self._present: frozenset[str] = frozenset()
        self._left_s = still_s  # for steps with fewer rows
        self._is_alone = False

    def __len__(self) -> int:
        """Tenants that are known."""
        return len(self._used_s)

    def due_s(self, shares: Mapping[str, Share]) -> dict[str, float]:
        """The tenants that have the next step to themselves, and for how long; empty if all tenants share it."""
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
        """Account for a step: its time, and its rows by tenant."""
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
