"""The scheduler with the traces of the open loop, on a simulated device."""

from __future__ import annotations

import pytest

from benchmarks.engine.open_loop.goodput import Targets
from benchmarks.engine.open_loop.sessions import Plan
from benchmarks.engine.open_loop.simulated import Device, lines, simulated
from inference.engine import step
from worker.runs import record

PLAN = Plan(Targets(ttft_s=0.5, tpot_s=0.05), rounds=1, sessions=96, seed="open loop")
BUSY = Device(slower=1.3)


def test_at_a_low_rate_nearly_all_turns_are_on_time_and_far_above_capacity_hardly_any() -> None:
    assert simulated(0.2, PLAN, Device()).share > 0.95
    assert simulated(4.0, PLAN, Device()).share < 0.1


def test_a_run_is_the_same_each_time() -> None:
    assert list(lines([0.5], PLAN, BUSY)) == list(lines([0.5], PLAN, BUSY))


def test_more_turns_are_on_time_if_urgent_prompts_do_not_wait_for_the_pace_of_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_time = simulated(1.0, PLAN, BUSY).in_time
    monkeypatch.setattr(step, "URGENT_SHARE", 1.0)  # nothing is urgent
    assert on_time > 1.02 * simulated(1.0, PLAN, BUSY).in_time


def test_the_worker_takes_the_targets_as_the_benchmark_writes_them() -> None:
    parsed = record.Targets.parse(f"embedded={Targets(ttft_s=0.5, tpot_s=0.0125)}")
    assert parsed.by_surface == {"embedded": record.Target(500, 12.5)}
