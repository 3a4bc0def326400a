"""Fairness between tenants where the duration of a step grows with its rows: a tenant with few streams should not pay
for the rows of one with many.

In a step with the rows of all tenants, each of them waits for the whole step: a tenant with few streams gets only a few
rows of a slow step. A tenant that has fewer requests than another and has used less device time gets steps to itself,
as many as fit into the difference: deficit round robin (Shreedhar & Varghese, SIGCOMM '95), with seconds instead of
bytes and the step of all tenants as the round. Where rows are cheap, this is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple


class Share(NamedTuple):
    """A tenant's demand."""

    requests: int
    alone_s: float  # the shortest step with its rows alone


class RowFairness:
    """Pure. Between two steps with all rows, steps with fewer rows get as much time as the last step with all rows
    took, at least `pause_s`; the last of them may exceed it. A tenant that returns after an absence has a credit of at
    most `pause_s`. All times are device time in seconds.
    """

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._used_s: dict[str, float] = {}  # by tenant; an absent tenant is dropped once its credit is full
        self._present: frozenset[str] = frozenset()
        self._left_s = pause_s  # for steps with fewer rows
        self._is_partial = False  # whether the next step has fewer rows

    def __len__(self) -> int:
        """Number of known tenants."""
        return len(self._used_s)

    def due_s(self, shares: Mapping[str, Share]) -> dict[str, float]:
        """The tenants that get the next step to themselves, and how long it may take; empty if all tenants share it."""
        self._update_present(shares)
        due = {}
        for tenant, share in shares.items():
            more = [self._used_s[other] for other in shares if shares[other].requests > share.requests]
            lag_s = min(self._left_s, max(more, default=-inf) - self._used_s[tenant])
            if lag_s >= share.alone_s:
                due[tenant] = lag_s
        self._is_partial = bool(due)
        return due

    def charge(self, took_s: float, rows: Mapping[str, int]) -> None:
        """Charge the duration of a step to the tenants, in proportion to their rows."""
        total = sum(rows.values())
        for tenant in self._used_s.keys() & rows.keys():
            self._used_s[tenant] += took_s * rows[tenant] / total
        self._left_s = self._left_s - took_s if self._is_partial else max(self._pause_s, took_s)

    def _update_present(self, shares: Mapping[str, Share]) -> None:
        used = self._used_s
        stayed = [used[tenant] for tenant in self._present & shares.keys()]
        lowest = min(stayed, default=max(used.values(), default=0.0)) - self._pause_s
        self._used_s = {tenant: seconds for tenant, seconds in used.items() if seconds > lowest}
        for tenant in shares:
            self._used_s.setdefault(tenant, lowest)
        self._present = frozenset(shares)
