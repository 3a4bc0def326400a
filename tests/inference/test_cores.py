"""The cores that a process may use, by affinity, quota and hyperthreads."""

from __future__ import annotations

from math import inf
from pathlib import Path

from inference.cores import cpu_quota, physical_cores, usable_cores


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def test_without_a_limit_the_quota_is_unlimited(tmp_path: Path) -> None:
    write(tmp_path / "own", "0::/")
    assert cpu_quota(tmp_path, tmp_path / "own") == inf
    write(tmp_path / "cpu.max", "max 100000")
    assert cpu_quota(tmp_path, tmp_path / "own") == inf


def test_the_smallest_quota_of_the_groups_above_counts(tmp_path: Path) -> None:
    write(tmp_path / "own", "0::/slice/service")
    write(tmp_path / "slice" / "cpu.max", "150000 100000")
    write(tmp_path / "slice" / "service" / "cpu.max", "400000 100000")
    assert cpu_quota(tmp_path, tmp_path / "own") == 1.5


def test_the_first_version_of_control_groups_has_quotas_too(tmp_path: Path) -> None:
    write(tmp_path / "own", "2:cpuacct,cpu:/job\n0::/")
    write(tmp_path / "cpu" / "job" / "cpu.cfs_quota_us", "200000")
    write(tmp_path / "cpu" / "job" / "cpu.cfs_period_us", "100000")
    write(tmp_path / "cpu" / "cpu.cfs_quota_us", "-1")
    write(tmp_path / "cpu" / "cpu.cfs_period_us", "100000")
    assert cpu_quota(tmp_path, tmp_path / "own") == 2.0


def test_threads_of_one_core_are_one_core(tmp_path: Path) -> None:
    for number in range(1024):
        write(tmp_path / f"cpu{number}" / "topology" / "thread_siblings_list", "0-1023")
    assert physical_cores(tmp_path) == 1


def test_processors_without_a_topology_are_cores(tmp_path: Path) -> None:
    assert physical_cores(tmp_path) == usable_cores()
