"""What leaves the parked states leaves the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from inference.pages import MAPPED_BYTES_MIN, pages

ROOT = Path(__file__).resolve().parents[2]
CACHE_MB, BESIDE_MB_MAX = 64, 16  # the largest state on its way into the cache, small objects and their holes: 11 MB
# Conversations of all sizes come and go between objects that stay for a while, in a process that does nothing else.
LIFE = f"""
import random
import numpy as np
from inference.prompt import CacheScope
from inference.kvcache.host_cache import Entry, HostCache

def resident_mb():
    status = open("/proc/self/status").read()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024

dice, beside, cache, before = random.Random(1), [], HostCache({CACHE_MB} * 2**20), resident_mb()
for number in range(1500):
    state = np.full(int(2 ** dice.uniform(17, 22)), number % 256, np.uint8)
    cache.put(Entry((number, *range(63)), CacheScope(""), state))
    del state
    beside.append(bytearray(dice.randrange(1_000, 60_000)))
    if len(beside) > 200:
        beside.pop(dice.randrange(200))
print(resident_mb() - before - cache.bytes / 2**20)
"""


def test_states_that_come_and_go_leave_no_holes() -> None:
    """In the heap they leave 38 MB of them."""
    told = subprocess.run(
        [sys.executable, "-c", LIFE], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert float(told.stdout) < BESIDE_MB_MAX


def test_room_of_any_size_can_be_written() -> None:
    for size in (0, 1, MAPPED_BYTES_MIN - 1, MAPPED_BYTES_MIN, MAPPED_BYTES_MIN + 1):
        room = pages(size)
        room[:] = 7
        assert room.dtype == np.uint8 and room.size == size and int(room.sum(dtype=np.int64)) == 7 * size
