"""Fair shares between tenants, counted in tokens.

The virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., OSDI '24): the least served
tenant goes first, and a tenant that was idle does not return with credit for its absence.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple, TypeVar

T = TypeVar("T")

# Idle tenants whose count is kept, in about 100 kB. Beyond that the least served one is dropped: it would return with
# almost the same count anyway.
IDLE_TENANTS_MAX = 1000
# A tenant may hold this many times what is free: a single tenant four fifths of everything, two of them four ninths
# each. So there is always room for a tenant that holds little ("Dynamic queue length thresholds", Choudhury & Hahne
# 1998).
SHARE_FACTOR = 4
# A tenant with less demand may have been served this many tokens more and still count as equal: a few short answers,
# like the quantum of a new flow in "The Flow Queue CoDel Packet Scheduler" (RFC 8290).
QUANTUM = 1024


def within_share(held: int, free: int, wanted: int = 1) -> bool:
    """Whether a tenant that holds `held` may have `wanted` more of what is free."""
    return wanted <= free and held < SHARE_FACTOR * free


def in_turns(
    waiting: Iterable[T], of: Callable[[T], str], served: Callable[[str], int], cost: Callable[[T], int]
) -> Iterator[T]:
    """Yield requests of the least served tenant first, and those of one tenant in the order of `waiting`. A request
    counts as served as soon as it is yielded. `of` gives its tenant, `served` and `cost` are in tokens."""
    queues: defaultdict[str, deque[tuple[int, T]]] = defaultdict(deque)
    for place, each in enumerate(waiting):
        queues[of(each)].append((place, each))
    heap = [(served(tenant), queue[0][0], tenant) for tenant, queue in queues.items()]
    heapify(heap)
    while heap:
        count, _, tenant = heappop(heap)
        _, each = queues[tenant].popleft()
        yield each
        if queue := queues[tenant]:
            heappush(heap, (count + cost(each), queue[0][0], tenant))


class Shares:
    """Tokens served by tenant. Pure. A tenant is present while it has requests in the engine."""

    def __init__(self) -> None:
        self._present: Counter[str] = Counter()
        self._served: dict[str, int] = {}

    def join(self, tenant: str) -> None:
        """Count a new request of the tenant."""
        self._served[tenant] = self.joining(tenant)
        self._present[tenant] += 1

    def joining(self, tenant: str) -> int:
        """The tenant's count when its next request arrives: after an absence, at least the minimum of the tenants
        present."""
        if self._present[tenant]:
            return self.served(tenant)
        others = [self._served.get(other, 0) for other in list(self._present)]
        return max(self._served.get(tenant, 0), min(others, default=0))

    def leave(self, tenant: str) -> None:
        """Count a finished request of the tenant."""
        self._present[tenant] -= 1
        if not self._present[tenant]:
            del self._present[tenant]
        if not self._present:  # all tenants start over from zero
            self._served.clear()
        if len(self._served) - len(self._present) > IDLE_TENANTS_MAX:
            del self._served[min(self._served.keys() - self._present.keys(), key=self.served)]

    def __len__(self) -> int:
        """Number of known tenants."""
        return len(self._served)

    @property
    def tenants(self) -> int:
        """Number of tenants present."""
        return len(self._present)

    def present(self, tenant: str) -> int:
        """Requests of the tenant in the engine."""
        return self._present[tenant]

    def gives_way(self, tenant: str, to: str) -> bool:
        """Whether a tenant yields to another one that has fewer requests and was not served more."""
        return self._present[to] < self._present[tenant] and self.served(to) < self.served(tenant) + QUANTUM

    def place_share(self, places: int, newcomers: int = 0) -> int:
        """Each present tenant's share of the places."""
        return max(1, places // max(1, self.tenants + newcomers))

    def charge(self, tenant: str, tokens: int) -> None:
        self._served[tenant] += tokens

    def served(self, tenant: str) -> int:
        """Tokens that the tenant counts as served."""
        return self._served.get(tenant, 0)


class Share(NamedTuple):
    """A tenant's demand."""

    requests: int
    alone_s: float  # the shortest step with its rows alone


class RowFairness:
    """Fairness where the duration of a step grows with its rows: a tenant with few streams should not pay for the rows
    of one with many.

    In a step with the rows of all tenants, each of them waits for the whole step: a tenant with few streams gets only a
    few rows of a slow step. A tenant that has fewer requests than another and has used less device time gets steps to
    itself, as many as fit into the difference: deficit round robin (Shreedhar & Varghese, SIGCOMM '95), with seconds
    instead of bytes and the step of all tenants as the round. Where rows are cheap, this is not needed.

    Pure. Between two steps with all rows, steps with fewer rows get as much time as the last step with all rows
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
