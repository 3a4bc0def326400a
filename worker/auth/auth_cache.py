"""A cache of recently checked credentials, so that a request costs a hash and a lookup; and the work that is ended when
a credential is revoked.

All entries are checked again by one statement every RECHECK_S, also those whose requests are still in progress. So a
revoked credential is useless after RECHECK_S, or after CACHE_S at the latest if the database is unavailable.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from worker.auth.principal import Principal

CACHE_S = 30.0  # a revoked credential keeps working for at most this long
RECHECK_S = 10.0
CACHED_MAX = 10_000  # of about 1 KB each: 10 MB
IDLE_S = 900.0  # an entry that is unused for this long is dropped; a user may think and type for this long

End = Callable[[], object]


@dataclass(slots=True)
class _Entry:
    """Times are `time.monotonic()`, except for the expiry of the credential."""

    principal: Principal
    expires_at: float  # time.time()
    checked_at: float
    used_at: float
    used: bool = True  # since the last check

    def counts(self, now: float) -> bool:
        """Whether it may be used without a new check."""
        return now < self.checked_at + CACHE_S and time.time() < self.expires_at


class AuthCache:
    """Principals by a hash of their credential, and their work in progress by their subject."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # least recently used first
        self._going_on: defaultdict[str, set[End]] = defaultdict(set)

    def __repr__(self) -> str:
        return f"<AuthCache {len(self._entries)} of {CACHED_MAX} | {len(self._going_on)} being answered>"

    def get(self, mark: bytes) -> Principal | None:
        entry, now = self._entries.get(mark), time.monotonic()
        if entry is None or not entry.counts(now):
            return None
        entry.used, entry.used_at = True, now
        self._entries.move_to_end(mark)
        return entry.principal

    def put(self, mark: bytes, principal: Principal, expires_at: float) -> None:
        """Add a principal that was looked up; `expires_at` of the credential is in Unix seconds."""
        now = time.monotonic()
        self._entries[mark] = _Entry(principal, expires_at, now, now)
        self._entries.move_to_end(mark)
        if len(self._entries) > CACHED_MAX:
            self._entries.popitem(last=False)

    @contextmanager
    def revocable(self, principal: Principal, end: End) -> Iterator[None]:
        """Wraps work for a principal: `end` is called if its credential is revoked before the block ends."""
        if not principal.is_revocable:
            yield
            return
        subject = principal.subject
        self._going_on[subject].add(end)
        try:
            yield
        finally:
            self._going_on[subject].discard(end)
            if not self._going_on[subject]:
                del self._going_on[subject]

    def to_check(self) -> tuple[set[str], set[str]]:
        """Subjects to check again, and those of them that were used since the last check. Unused entries are
        dropped.
        """
        idle_since = time.monotonic() - IDLE_S
        while self._entries and next(iter(self._entries.values())).used_at < idle_since:
            self._entries.popitem(last=False)
        revocable = [entry for entry in self._entries.values() if entry.principal.is_revocable]
        used = {entry.principal.subject for entry in revocable if entry.used}
        for entry in revocable:
            entry.used = False
        return {entry.principal.subject for entry in revocable} | self._going_on.keys(), used

    def checked(self, subjects: set[str], counting: set[str], asked_at: float) -> None:
        """The subjects in `counting` were still valid at `asked_at` (monotonic); the others are ended."""
        for entry in self._entries.values():
            if entry.principal.is_revocable and entry.principal.subject in counting:
                entry.checked_at = asked_at
        self.end(subjects - counting)

    def end(self, subjects: set[str]) -> None:
        """Their credentials are no longer valid."""
        ended = [mark for mark, entry in self._entries.items() if entry.principal.subject in subjects]
        for mark in ended:
            del self._entries[mark]
        for subject in subjects & self._going_on.keys():
            for end in tuple(self._going_on[subject]):
                end()
