"""The tiers of the KV cache: moves states between the device, host memory and disk. Owned by the engine's thread.

A conversation leaves its slot for host memory, and host memory for disk; it comes back the same way when its next
prompt arrives, before that is scheduled. Beginnings that several conversations share go to disk at once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from inference.backend import Backend
from inference.errors import InferenceError
from inference.kvcache.arrivals import Arrivals
from inference.kvcache.disk import DiskTier
from inference.kvcache.host_cache import PARK_TOKENS_MIN, Entry, HostCache
from inference.kvcache.roots import Roots
from inference.kvcache.slots import Placement, Saved, Slots
from inference.request import Request
from inference.trace import now_ns

log = logging.getLogger("firsttoken.engine")


@dataclass(frozen=True, slots=True)
class TierCosts:
    """What the tiers cost, measured while serving; 0 where nothing was measured yet."""

    parked_bytes_per_token: float
    restore_us_per_token: float
    prefill_us_per_token: float

    @property
    def restore_ratio(self) -> float:
        """Bringing a token back against computing it again."""
        return self.restore_us_per_token / self.prefill_us_per_token if self.prefill_us_per_token else 0.0


class Tiers:
    def __init__(self, backend: Backend, slots: Slots, disk: DiskTier | None, wake: Callable[[], None]) -> None:
        self._backend, self._slots, self._disk, self._wake = backend, slots, disk, wake
        self._arrivals = Arrivals(disk) if disk else None
        self._roots = Roots()
        self.totals: Counter[str] = Counter()  # restored, restored_tokens, restore_ns

    @property
    def parked(self) -> HostCache:
        return self._slots.parked

    @property
    def arriving(self) -> list[Request]:
        """Requests that wait for the disk."""
        return self._arrivals.requests if self._arrivals else []

    def start(self) -> None:
        if self._disk:
            self._disk.start()

    def hold(self, request: Request, token_s: float | None) -> bool:
        """Whether the request waits for the disk first: it has more of the prompt than memory has."""
        if self._arrivals is None:
            return False
        held = self._slots.longest(request.prompt, request.scope)
        reading = self._arrivals.hold(request, held, token_s, now_ns())
        if reading is not None:
            reading.add_done_callback(lambda _: self._wake())
        return reading is not None

    def arrived(self) -> list[Request]:
        """The requests that need not wait any longer."""
        if self._arrivals is None:
            return []
        ready = self._arrivals.ready(now_ns())
        for entry in self._arrivals.read():
            if self.parked.wants(entry.tokens, entry.scope):
                self._park(entry)
        return ready

    def leave(self, request: Request) -> bool:
        """A request ends; whether it was one that waits for the disk."""
        if request not in self.arriving or self._arrivals is None:
            return False
        self._arrivals.remove(request)
        return True

    def wait_s(self) -> float | None:
        """How long the engine may sleep at most for those who wait."""
        return self._arrivals.wait_s(now_ns()) if self._arrivals else None

    def park(self, saved: Saved) -> None:
        """Copy the state of an idle slot to host memory, if that goes."""
        self._slots.parking_ended(saved.slot, copied=self._save(saved))

    def place(self, request: Request, placement: Placement) -> None:
        """Make a slot hold what its new request can use. Raises InferenceError."""
        if placement.saves:
            self._save(placement.saves)
        if placement.restored is not None:
            self._restore(placement, placement.restored)
        elif placement.source == placement.slot:
            self._backend.truncate(placement.slot, placement.reused)
        else:
            self._backend.fork(placement.source, placement.slot, placement.reused)
        self._keep_root(request, placement)

    def close(self) -> None:
        """What is worth keeping goes to disk, the most recently used first. Takes some seconds at most."""
        if self._disk is None:
            return
        while (saved := self._slots.unsaved()) is not None:
            self.park(saved)
        for entry in self.parked.entries:
            self._disk.write(entry, patient=True)
        self._disk.close()

    def costs(self, prefill_s: float | None) -> TierCosts:
        """`prefill_s`: seconds to compute a token of a prompt."""
        parked, totals = self.parked, self.totals
        return TierCosts(
            parked_bytes_per_token=parked.bytes / max(1, parked.tokens),
            restore_us_per_token=totals["restore_ns"] / 1e3 / max(1, totals["restored_tokens"]),
            prefill_us_per_token=(prefill_s or 0.0) * 1e6,
        )

    def stats(self) -> dict[str, int]:
        disk = self._disk
        return {
            "parked": len(self.parked),
            "parked_bytes": self.parked.bytes,
            "restored_total": self.totals["restored"],
            "restored_tokens_total": self.totals["restored_tokens"],
            "disk_files": disk.files if disk else 0,
            "disk_bytes": disk.size if disk else 0,
            "disk_read_total": disk.totals["read"] if disk else 0,
            "disk_written_total": disk.totals["written"] if disk else 0,
            "disk_damaged_total": disk.totals["damaged"] if disk else 0,
        }

    def _save(self, saved: Saved) -> bool:
        """Offer a copy of a slot's state to host memory; whether there was one."""
        try:
            self._park(Entry(saved.tokens, saved.scope, self._backend.save(saved.slot)))
        except (InferenceError, MemoryError) as error:  # without a copy it may cost a prefill, and no answer
            log.error("a conversation could not be parked: %s", error)
            return False
        return True

    def _park(self, entry: Entry) -> None:
        for gone in self.parked.put(entry, self._backend.regions):
            if self._disk:
                self._disk.write(gone)

    def _restore(self, placement: Placement, entry: Entry) -> None:
        started = now_ns()
        try:
            self._backend.restore(placement.slot, entry.state)
        except InferenceError:
            self.parked.discard(entry)
            raise
        self._backend.truncate(placement.slot, placement.reused)
        self.totals["restored"] += 1
        self.totals["restored_tokens"] += placement.reused
        self.totals["restore_ns"] += now_ns() - started

    def _keep_root(self, request: Request, placement: Placement) -> None:
        """The slot holds the beginning and nothing else now: the moment to save it."""
        diverges = placement.miss is not None and bool(placement.miss.held)
        if self._disk is None or not diverges or placement.reused < PARK_TOKENS_MIN:
            return
        tokens, scope = request.tokens, request.scope
        beginning = tuple(tokens[: placement.reused])
        if self._roots.left(tokens, placement.reused, scope) and not self._disk.holds(beginning, scope, root=True):
            self._disk.write(Entry(beginning, scope, self._backend.save(placement.slot)), root=True)
