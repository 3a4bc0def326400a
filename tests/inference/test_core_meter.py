"""What other programs leave: from the kernel's counters of processors, of this process and of its control groups."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from inference import core_meter
from inference.core_meter import CoreMeter, CpuTimes, cores_left
from inference.cores import affinity

BEGIN = CpuTimes(0.0, 0.0, 0.0, 0.0)


def test_what_is_idle_is_left_and_so_is_what_this_process_takes() -> None:
    assert cores_left(BEGIN, CpuTimes(2.0, 1.0, 4.0, 2.0), 2) == 1.5


def test_a_quota_leaves_what_others_in_the_group_do_not_take_however_idle_the_machine_is() -> None:
    """Of two cores' worth, this process took one and others a half."""
    before = CpuTimes(0.0, 0.0, 0.0, 0.0, [10.0])
    after = CpuTimes(2.0, 120.0, 128.0, 2.0, [13.0])
    assert cores_left(before, after, 64, [2.0]) == 1.5


def test_nothing_is_known_where_nothing_is_counted() -> None:
    assert cores_left(BEGIN, CpuTimes(2.0, 0.0, 0.0, 2.0), 2) is None
    assert cores_left(BEGIN, BEGIN, 2) is None


def stat(idle: int, busy: int) -> str:
    """Both in hundredths of a second, for each processor; there are more of them than this process may use."""
    lines = [f"cpu{number} {busy} 0 0 {idle} 0 0 0 0 0 0" for number in range(max(affinity()) + 2)]
    return "\n".join(["cpu 9 9 9 9 9 9 9 9 9 9", *lines, "intr 1 2 3"])


def test_the_processors_that_this_process_may_use_count_in_windows_of_half_a_second(tmp_path: Path) -> None:
    meter = CoreMeter(tmp_path / "stat", tmp_path, tmp_path / "own")
    (tmp_path / "stat").write_text(stat(0, 0))
    assert meter.left(10.0) is None
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(stat(30 * ticks, 10 * ticks))
    assert meter.left(10.4) is None
    left = meter.left(50.0)
    assert left is not None and 0 <= left - 0.75 * len(affinity()) < 0.1
    assert meter.left(50.1) is None


def test_where_the_counters_take_long_to_read_they_are_read_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine with hundreds of processors: the engine's thread reads them between two steps."""
    reads: list[Path] = []

    def slowly(path: Path) -> str:
        reads.append(path)
        time.sleep(0.01)
        return ""

    meter = CoreMeter(tmp_path / "stat", tmp_path, tmp_path / "own")
    monkeypatch.setattr(core_meter, "text_of", slowly)
    for now_s in (0.0, 0.6, 5.0, 9.9):
        meter.left(now_s)
    assert reads == [tmp_path / "stat"]


def test_the_use_of_groups_with_a_quota_is_read_in_both_versions(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("2:cpu,cpuacct:/job\n0::/slice\n")
    files = {
        "slice/cpu.max": "200000 100000",
        "slice/cpu.stat": "usage_usec 5000000\nuser_usec 1",
        "cpu/job/cpu.cfs_quota_us": "150000",
        "cpu/job/cpu.cfs_period_us": "100000",
        "cpu/job/cpuacct.usage": "7000000000",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    meter = CoreMeter(tmp_path / "stat", tmp_path, tmp_path / "own")
    count = max(affinity()) + 1

    def counted(seconds: int) -> None:
        times = f"0 0 0 {seconds * os.sysconf('SC_CLK_TCK')} 0 0 0 0"
        (tmp_path / "stat").write_text("\n".join(f"cpu{number} {times}" for number in range(count)))

    counted(0)
    assert meter.left(0.0) is None
    counted(10)
    (tmp_path / "slice" / "cpu.stat").write_text("usage_usec 10000000")  # half a core
    (tmp_path / "cpu" / "job" / "cpuacct.usage").write_text("17000000000")  # a whole one
    left = meter.left(10.0)
    assert left is not None and 0.5 <= left < 0.6
