"""The parts of the worker's memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from worker.lifecycle.supervisor import Supervisor
from worker.telemetry.prometheus import Metrics, parts

STATUS = """Name:\tpython
VmRSS:\t  1000 kB
RssAnon:\t  700 kB
RssFile:\t  290 kB
RssShmem:\t  10 kB
Threads:\t4
"""
# Of 64 kB, between pieces that stay.
HOLES = """
from worker.telemetry.prometheus import unused_bytes
pieces = [bytearray(64 * 1024) for _ in range(400)]
before = unused_bytes()
del pieces[::2]
print(unused_bytes() - before)
"""


def test_the_parts_add_up_to_what_the_process_uses() -> None:
    found = parts(STATUS, {"kv_cache_bytes": 200 * 1024, "parked_bytes": 100 * 1024, "working_bytes": 50 * 1024})
    assert found["kv_cache"] == 200 * 1024 and found["rest"] == 350 * 1024
    assert sum(found.values()) == 1000 * 1024


def test_caches_are_no_growth_of_the_rest() -> None:
    sizes = {"prompt_index": 10, "token_cache": 30, "query_cache": 20, "prompt_end": 40}
    found = parts(STATUS, {f"{name}_bytes": size * 1024 for name, size in sizes.items()})
    told = [found[part] // 1024 for part in ("prompt_index", "token_cache", "query_cache", "prompt_ends", "rest")]
    assert told == [10, 30, 20, 40, 600]


def test_what_was_given_back_to_malloc_alone_has_a_name() -> None:
    """In a process where nobody else gives back."""
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    assert 64 * 1024 * 200 // 2 < int(done.stdout) < 2 * 64 * 1024 * 200
    assert parts(STATUS, {"unused_bytes": 100 * 1024})["unused"] == 100 * 1024


def test_what_was_reserved_and_never_touched_is_not_counted() -> None:
    found = parts(STATUS, {"kv_cache_bytes": 10**9, "parked_bytes": 100})
    assert (found["kv_cache"], found["parked"], found["rest"]) == (700 * 1024, 0, 0)
    assert sum(found.values()) == 1000 * 1024


def test_the_metrics_tell_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "status").write_text(STATUS)
    monkeypatch.setattr("worker.telemetry.prometheus.STATUS", tmp_path / "status")
    told = Metrics(lambda: {"kv_cache_bytes": 1024}, Supervisor()).render()
    assert b'firsttoken_memory_bytes{part="kv_cache"} 1024.0' in told
    assert b'firsttoken_memory_bytes{part="mapped_files"} 296960.0' in told
