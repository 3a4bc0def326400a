"""Health probes: balancers poll whether this worker is ready, and must see that it is stopping before it closes its
socket.

Until then they send requests on open connections. Those get 503, and are retried on another worker; a request that
meets a closed connection is lost, because nobody knows whether it was processed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

from inference.lru_cache import LruCache

LOOKS_KEPT = 4
PAUSES_MAX = 3  # of the mean one between the last looks: several balancers may look from one address, not evenly
PAUSE_S_MAX = 10.0  # slower probers would be waited for too long
# Failed probes in a row before a balancer stops sending: haproxy's default. The configurations in deploy/ need two.
FAILED_LOOKS = 3
ADDRESSES_MAX = 64


class HealthProbes:
    """`asked` is called for each probe, once its response is known."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._looks = LruCache[str, deque[float]](ADDRESSES_MAX)  # by address, the last ones
        self._unaware: dict[str, int] = {}  # how many more probes of each address must see that the worker is stopping
        self._changed = asyncio.Event()

    @property
    def are_aware(self) -> bool:
        return not self._unaware

    def asked(self, address: str) -> None:
        looks = self._looks.get(address) or deque(maxlen=LOOKS_KEPT)
        looks.append(self._clock())
        self._looks.put(address, looks)
        if address in self._unaware:
            self._unaware[address] -= 1
            if not self._unaware[address]:
                del self._unaware[address]
                self._changed.set()

    def stop(self) -> None:
        """From now on probes see that the worker is stopping."""
        self._unaware = {address: FAILED_LOOKS for address, looks in self._looks.items() if self._is_regular(looks)}

    def _is_regular(self, looks: deque[float]) -> bool:
        """Whether another probe is to be expected, because the last one is recent compared with the interval of those
        before. A script that waited for the start probed many times in a second, and a person once."""
        mean_s = (looks[-1] - looks[0]) / max(1, len(looks) - 1)
        return self._clock() - looks[-1] <= min(PAUSES_MAX * mean_s, PAUSE_S_MAX)

    async def aware(self) -> None:
        """Return when all regular probers have seen it often enough."""
        while self._unaware:
            self._changed.clear()
            await self._changed.wait()
