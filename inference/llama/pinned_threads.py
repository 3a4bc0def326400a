"""Compute threads that stay on a processor of their own.

Where a step has as many threads as there are processors, and another program takes one of these for a while, the kernel
moves two of the threads to the same processor. There each spins at a barrier instead of letting the one compute that it
waits for, at some hundred barriers of a step. Pinned, a thread shares its processor with the other program only. With
fewer threads, the kernel knows better than anybody which processors are free.
"""

from __future__ import annotations

import os
from collections.abc import Set
from contextlib import suppress
from typing import Any

from inference.llama.library import attach_pool, detach_pool, end_compute_threads, free_pool, new_pool


class PinnedThreads:
    """Of one context, for its thread. `processors`: those that this process may use."""

    def __init__(self, context: Any, processors: Set[int]) -> None:
        self._context, self._processors = context, processors
        self._pool = new_pool(sorted(processors)) if len(processors) > 1 and hasattr(os, "sched_setaffinity") else None
        self._attached = False

    def set(self, threads: int) -> None:
        """For the steps that follow."""
        if self._pool is None or (attached := threads == len(self._processors)) == self._attached:
            return
        self._attached = attached
        if attached:
            attach_pool(self._context, self._pool)
            return
        detach_pool(self._context)
        if threads > 1:
            end_compute_threads()  # new ones are free to move
        self._let_go()

    def rest(self) -> None:
        end_compute_threads()
        self._let_go()

    def close(self) -> None:
        """After the context has been freed."""
        self._let_go()
        if self._pool is not None:
            free_pool(self._pool)
            self._pool = None

    def _let_go(self) -> None:
        """Of the calling thread, which computes too."""
        if self._pool is not None:
            with suppress(OSError):  # none of these processors is left to this process
                os.sched_setaffinity(0, self._processors)
