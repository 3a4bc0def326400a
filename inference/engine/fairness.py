"""Fair shares between tenants, counted in tokens.

The virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., OSDI '24): the tenant that was
served least goes first, and one that was away does not come back with credit for it.
"""

from __future__ import annotations

from collections import Counter

# Idle tenants whose service is remembered, in about 100 kB. Beyond it the least served tenant is forgotten, which would
# return with almost no deficit.
IDLE_TENANTS_MAX = 1000


class Shares:
    """Pure. A tenant is present while it has requests in the engine."""

    def __init__(self) -> None:
        self._present: Counter[str] = Counter()
        self._served: dict[str, int] = {}

    def join(self, tenant: str) -> None:
        """A request of the tenant arrives."""
        if not self._present[tenant]:
            others = [self._served[other] for other in self._served if self._present[other]]
            self._served[tenant] = max(self._served.get(tenant, 0), min(others, default=0))
        self._present[tenant] += 1

    def leave(self, tenant: str) -> None:
        """A request of the tenant has ended."""
        self._present[tenant] -= 1
        if not self._present[tenant]:
            del self._present[tenant]
        if not self._present:  # all tenants start from zero
            self._served.clear()
        if len(self._served) - len(self._present) > IDLE_TENANTS_MAX:
            del self._served[min(self._served.keys() - self._present.keys(), key=self.served)]

    def __len__(self) -> int:
        """Tenants that are known."""
        return len(self._served)

    def charge(self, tenant: str, tokens: int) -> None:
        self._served[tenant] += tokens

    def served(self, tenant: str) -> int:
        """Tokens computed for the tenant, as far as they count."""
        return self._served.get(tenant, 0)
