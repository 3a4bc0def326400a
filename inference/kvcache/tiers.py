"""The tiers of the KV cache: moves states between the device, host memory and disk. Owned by the engine's thread.

A conversation moves from its slot to host memory, and from there to disk; it returns the same way when its next prompt
arrives, before that is scheduled. A conversation that shares its beginning with others in host memory is written to
disk at once, and so is a prefix that all tenants share: the next start reads it there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from inference.backend import Backend
from inference.errors import InferenceError
from inference.kvcache.disk import DiskTier
from inference.kvcache.host_cache import PARK_TOKENS_MIN, Entry, HostCache
from inference.kvcache.slots import Placement, PromptEnd, Saved, Slots
from inference.prompt import CacheScope
from inference.request import Request
from inference.trace import now_ns

log = logging.getLogger("firsttoken.engine")

# Seconds per token of prefill until it has been measured: that of a mid-sized model on a CPU.
PREFILL_S = 0.005
WAIT_S_MAX = 2.0  # however much prefill a read would save: a disk slower than this does not help
SHARED = CacheScope("shared")  # of a saved state that is no more than a prefix that all tenants share


@dataclass(frozen=True, slots=True)
class _Arrival:
    request: Request
    reading: Future[Entry | None]
    until_ns: int


class Arrivals:
    """Requests that wait, before they are scheduled, for the prefix of their prompt to be read from disk.

    A read is only worth waiting for while it is cheaper than prefill, so no request waits longer than its prefill would
    take. Pure except for the disk, which is passed in; without one, nothing waits.
    """

    def __init__(self, disk: DiskTier | None) -> None:
        self._disk = disk
        self._waiting: list[_Arrival] = []
        self._reading: dict[str, Future[Entry | None]] = {}

    @property
    def requests(self) -> list[Request]:
        return [arrival.request for arrival in self._waiting]

    def hold(
        self, request: Request, held: int, token_s: float | None, now_ns: int, *, shared: bool = False
    ) -> Future[Entry | None] | None:
        """The read that the request now waits for; None if it need not wait.

        `held` tokens of its prompt are in memory; prefill takes `token_s` seconds per token. `shared`: all tenants
        share its prompt.
        """
        if self._disk is None or len(request.prompt) - held <= PARK_TOKENS_MIN:
            return None
        found = self._disk.match(request.prompt[:-1], SHARED if shared else request.scope)
        if found is None or found.tokens < held + PARK_TOKENS_MIN:
            return None
        reading = self._reading.get(found.name)
        if reading is None or reading.done():
            reading = self._reading[found.name] = self._disk.read(found)
        wait_s = min(WAIT_S_MAX, (found.tokens - held) * (token_s or PREFILL_S))
        self._waiting.append(_Arrival(request, reading, now_ns + int(wait_s * 1e9)))
        return reading

    def ready(self, now_ns: int) -> list[Request]:
        """Requests that stop waiting: their prefix was read, or reading takes too long."""
        ready = [a.request for a in self._waiting if a.reading.done() or now_ns >= a.until_ns]
        self._waiting = [a for a in self._waiting if a.request not in ready]
        return ready

    def read(self) -> list[Entry]:
        """The entries read since the last call, for the tier above. Includes those that came too late for their
        request: another may use them."""
        done = [name for name, reading in self._reading.items() if reading.done()]
        entries = [self._reading.pop(name).result() for name in done]
        return [entry for entry in entries if entry is not None]

    def leave(self, request: Request) -> bool:
        """Remove a request that ends; returns whether it was waiting."""
        before, self._waiting = self._waiting, [a for a in self._waiting if a.request is not request]
        return len(self._waiting) < len(before)

    def wait_s(self, now_ns: int) -> float | None:
        """Seconds until the first request stops waiting; None if no request waits."""
        ends = [a.until_ns for a in self._waiting]
        return max(0.0, (min(ends) - now_ns) / 1e9) if ends else None


class Tiers:
    def __init__(self, backend: Backend, slots: Slots, disk: DiskTier | None, wake: Callable[[], None]) -> None:
        self._backend, self._slots, self._disk, self._wake = backend, slots, disk, wake
        self.arrivals = Arrivals(disk)
        self.totals: Counter[str] = Counter()  # restored, restored_tokens, restore_ns

    @property
    def parked(self) -> HostCache:
        return self._slots.parked

    def start(self) -> None:
        if self._disk:
            self._disk.start()

    def hold(self, request: Request, token_s: float | None) -> bool:
        """Whether the request has to wait because the disk has more of its prompt than memory."""
        if self._disk is None or request.is_unscored:
            return False
        held = self._slots.longest(request.prompt, request.scope)
        shared = self._slots.is_shared(request.prompt, request.scope)
        reading = self.arrivals.hold(request, held, token_s, now_ns(), shared=shared)
        if reading is not None:
            reading.add_done_callback(lambda _: self._wake())
        return reading is not None

    def arrived(self) -> list[Request]:
        """The requests that need not wait any longer."""
        ready = self.arrivals.ready(now_ns())
        for entry in self.arrivals.read():
            for kept in entry.checkpoints:
                self._slots.checkpoints.put(entry.tokens[: kept.tokens], entry.scope, kept.state, kept.logits)
            if self.parked.wants(entry.tokens, entry.scope):
                self._keep(replace(entry, checkpoints=()))
        return ready

    def park(self, saved: Saved) -> None:
        """Copy a slot's state to host memory."""
        with _keeping("a conversation"):
            scope = SHARED if self._slots.is_shared(saved.tokens, saved.scope) else saved.scope
            self._keep(Entry(saved.tokens, scope, self._backend.save(saved.slot)))

    def place(self, placement: Placement) -> None:
        """Prepare a slot for its new request: save, then restore, truncate or fork. Raises InferenceError."""
        if placement.saves:
            self.park(placement.saves)
        if placement.restored is not None:
            self._restore(placement, placement.restored)
        elif placement.source == placement.slot:
            self._backend.truncate(placement.slot, placement.reused, placement.state)
        else:
            self._backend.fork(placement.source, placement.slot, placement.reused, placement.state)
        self.totals["checkpoints_used"] += placement.checkpoint is not None
        self.keep_checkpoint(placement.slot)

    def keep_checkpoint(self, number: int) -> None:
        """Keep the recurrent state of a slot if it is at a boundary."""
        slot = self._slots[number]
        if slot.computed in slot.boundaries:
            with _keeping("the state at a boundary"):
                self._slots.keep_checkpoint(number, self._backend.checkpoint(number))

    def keep_end(
        self, number: int, tokens: int, logits: NDArray[np.float32], *, goes_on: bool, ahead: bool = False
    ) -> None:
        """Keep what the same prompt needs to be answered without a step: these logits behind so many tokens, which are
        all that the slot has. `goes_on`: it is about to get more of them. Of a prompt that was prefilled `ahead` there
        is no checkpoint: nobody has asked it yet, and of a text that is being written comes one with every pause."""
        stays = self._backend.rewinds or not goes_on
        apart = not (self._backend.rewinds or ahead) and self._slots.checkpoints.keeps
        with _keeping("the end of a prompt"):
            end = PromptEnd(tokens, logits.copy()) if stays or apart else None
            self._slots.keep_end(number, end if stays else None)
            if apart and end:
                self._slots.keep_checkpoint(number, self._backend.checkpoint(number), end.logits)

    def keep_shared(self, number: int) -> None:
        """Write what a slot holds to disk, if all tenants share it: to compute the prompts of all agents takes most of
        a start."""
        slot = self._slots[number]
        tokens = tuple(slot.tokens)
        if self._disk is None or not self._slots.is_shared(tokens, slot.scope) or self._disk.holds(tokens, SHARED):
            return
        with _keeping("a prefix that all share"):
            self._write(Entry(tokens, SHARED, self._backend.save(number)))

    def close(self) -> None:
        """Write what is worth keeping to disk, most recently used first. Takes a few seconds at most."""
        if self._disk is None:
            return
        while (saved := self._slots.offer()) is not None:
            self.park(saved)
        for entry in self.parked.entries:
            self._write(entry, patient=True)
        self._disk.close()

    def abandon(self) -> None:
        """Release the folder without writing: the engine failed, and its record of the states may be wrong."""
        if self._disk is not None:
            self._disk.writes = False
            self._disk.close()

    def stats(self, prefill_s: float | None) -> dict[str, float]:
        """`prefill_s`: seconds to prefill one token, with which those to restore one are compared."""
        disk, restore_s = self._disk, self.totals["restore_ns"] / 1e9 / max(1, self.totals["restored_tokens"])
        return {
            "parked_bytes_per_token": self.parked.bytes / max(1, self.parked.tokens),
            "restore_ratio": restore_s / prefill_s if prefill_s else 0.0,
            "parked": len(self.parked),
            "parked_bytes": self.parked.bytes,
            "checkpoints": len(self._slots.checkpoints),
            "checkpoint_bytes": self._slots.checkpoints.bytes,
            "checkpoints_used_total": self.totals["checkpoints_used"],
            "prompt_end_bytes": self._slots.end_bytes,
            "prompt_index_bytes": self._slots.index_bytes,
            "restored_total": self.totals["restored"],
            "restored_tokens_total": self.totals["restored_tokens"],
            "disk_files": disk.files if disk else 0,
            "disk_bytes": disk.size if disk else 0,
            "disk_read_total": disk.totals["read"] if disk else 0,
            "disk_written_total": disk.totals["written"] if disk else 0,
            "disk_damaged_total": disk.totals["damaged"] if disk else 0,
        }

    def _keep(self, entry: Entry) -> None:
        """One that turns out to share its beginning is written at once: a crash then costs no conversation that begins
        with it a prefill."""
        roots = self.parked.roots_made
        for gone in self.parked.put(entry, self._backend.regions):
            self._write(gone)
        if self.parked.roots_made > roots:
            self._write(entry)

    def _write(self, entry: Entry, *, patient: bool = False) -> None:
        """Write a conversation to disk, if there is one, with checkpoints from which prompts may go on."""
        if self._disk:
            kept = self._slots.checkpoints.along(entry.tokens, entry.scope)
            self._disk.write(replace(entry, checkpoints=kept), patient=patient)

    def _restore(self, placement: Placement, entry: Entry) -> None:
        started = now_ns()
        try:
            self._backend.restore(placement.slot, entry.state)
        except InferenceError:
            self.parked.discard(entry)
            raise
        self._backend.truncate(placement.slot, placement.reused, placement.state)
        self.totals["restored"] += 1
        self.totals["restored_tokens"] += placement.reused
        self.totals["restore_ns"] += now_ns() - started


@contextmanager
def _keeping(what: str) -> Iterator[None]:
    """Without what is kept an answer takes longer, and nothing else."""
    try:
        yield
    except (InferenceError, MemoryError) as error:
        log.error("%s could not be kept: %s", what, error)
