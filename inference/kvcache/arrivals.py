"""Arrivals: requests that wait for the beginning of their prompt to be read from disk, before they are scheduled.

Reading is worth waiting for only while it is cheaper than computing, so nobody waits for longer than that would take.
Pure but for the disk, which it is given.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from inference.kvcache.disk import Found
from inference.kvcache.host_cache import PARK_TOKENS_MIN, Entry
from inference.request import Request
from inference.scope import CacheScope

# While the pace of prefill is not known, this is taken for the seconds of a token: a mid-sized model on a CPU.
PREFILL_S = 0.005
WAIT_S_MAX = 2.0  # whatever would be saved: a disk this slow is no help


class Disk(Protocol):
    def match(self, tokens: list[int], scope: CacheScope) -> Found | None: ...
    def read(self, found: Found) -> Future[Entry | None]: ...


@dataclass(frozen=True, slots=True)
class _Arrival:
    request: Request
    reading: Future[Entry | None]
    until_ns: int


class Arrivals:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: list[_Arrival] = []
        self._reading: dict[str, Future[Entry | None]] = {}

    @property
    def requests(self) -> list[Request]:
        return [arrival.request for arrival in self._waiting]

    def hold(self, request: Request, held: int, token_s: float | None, now_ns: int) -> Future[Entry | None] | None:
        """What the request waits for from now on; None: nothing, and it is not held.

        `held` tokens of its prompt are in memory; computing one takes `token_s`.
        """
        found = self._disk.match(request.prompt[:-1], request.scope)
        if found is None or found.tokens < held + PARK_TOKENS_MIN:
            return None
        reading = self._reading.get(found.name)
        if reading is None or reading.done():
            reading = self._reading[found.name] = self._disk.read(found)
        wait_s = min(WAIT_S_MAX, (found.tokens - held) * (token_s or PREFILL_S))
        self._waiting.append(_Arrival(request, reading, now_ns + int(wait_s * 1e9)))
        return reading

    def ready(self, now_ns: int) -> list[Request]:
        """Those who need not wait any longer: it is read, or it takes too long."""
        ready = [a.request for a in self._waiting if a.reading.done() or now_ns >= a.until_ns]
        self._waiting = [a for a in self._waiting if a.request not in ready]
        return ready

    def read(self) -> list[Entry]:
        """What was read since the last time, for the tier above; somebody may still want what came too late."""
        done = [name for name, reading in self._reading.items() if reading.done()]
        entries = [self._reading.pop(name).result() for name in done]
        return [entry for entry in entries if entry is not None]

    def remove(self, request: Request) -> None:
        self._waiting = [a for a in self._waiting if a.request is not request]

    def wait_s(self, now_ns: int) -> float | None:
        """Until somebody's patience ends; None: nobody waits."""
        ends = [a.until_ns for a in self._waiting]
        return max(0.0, (min(ends) - now_ns) / 1e9) if ends else None
