"""Compute threads exist only while something computes, and once."""

from __future__ import annotations

import pytest

from inference.provisioning.speed import isolated_barriers


def test_the_thread_that_loads_a_model_leaves_no_compute_threads_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_THREAD_LIMIT", raising=False)
    found = isolated_barriers()
    assert (found.busy, found.resting) == (found.threads - 1, 0)
