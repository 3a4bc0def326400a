"""The memory of the worker's process, by part. The parts add up to what the process uses, so that whatever grows has a
name: `unused` is memory freed to malloc but not returned to the system, `rest` is Python, its libraries and everything
unaccounted for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

STATUS = Path("/proc/self/status")  # on Linux; elsewhere the ledger is empty
KNOWN = {  # part -> engine's gauge
    "kv_cache": "kv_cache_bytes",
    "working": "working_bytes",
    "parked": "parked_bytes",
    "checkpoints": "checkpoint_bytes",  # of recurrent states
    "prompt_index": "prompt_index_bytes",  # of parked prompts, and of those seen before
    "token_cache": "token_cache_bytes",  # token ids of prompt fragments and of generated turns
    "answer_cache": "answer_cache_bytes",  # exact-match answers
    "semantic_cache": "semantic_cache_bytes",  # answers to similar questions
    "query_cache": "query_cache_bytes",  # embedded queries
}


def parts(status: str, stats: Mapping[str, Any]) -> dict[str, int]:
    """Bytes by part, from the text of /proc/*/status and the engine's gauges. Memory that the engine reserved but has
    not touched is not resident: its parts are capped by what is left, in their order. Pure."""
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    resident = {name: int(lines[key].split()[0]) * 1024 for name, key in _RESIDENT.items()}
    found, left = {"mapped_files": resident["file"], "shared": resident["shared"]}, resident["anonymous"]
    for part, gauge in {**KNOWN, "unused": "unused_bytes"}.items():
        found[part] = min(int(stats.get(gauge) or 0), left)
        left -= found[part]
    return {**found, "rest": left}


def unused_bytes() -> int:
    """Free memory in malloc's heaps: the holes between allocations. 0 without glibc, or if it is too old to report it.
    Takes about 0.1 ms."""
    try:
        tell = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    tell.restype = _Mallinfo
    return int(tell().fordblks)


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`; free bytes are `fordblks`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


_RESIDENT = {"anonymous": "RssAnon", "file": "RssFile", "shared": "RssShmem"}


class MemoryLedger:
    """A collector that takes its measurements during a scrape."""

    def __init__(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._stats = stats

    def collect(self) -> list[Metric]:
        if not STATUS.exists():
            return []
        family = GaugeMetricFamily("firsttoken_memory_bytes", "Resident memory of the process", labels=["part"])
        for part, size in parts(STATUS.read_text(), {**self._stats(), "unused_bytes": unused_bytes()}).items():
            family.add_metric([part], float(size))
        return [family]
