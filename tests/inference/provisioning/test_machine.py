"""Limits of control groups, in both versions, nested and shared with the host."""

from __future__ import annotations

from pathlib import Path

from inference.provisioning.machine import cgroup_memory_free

MB = 10**6


def group(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")
    return folder


def own(tmp_path: Path, text: str) -> Path:
    (tmp_path / "own").write_text(text)
    return tmp_path / "own"


def test_without_groups_nobody_tells(tmp_path: Path) -> None:
    assert cgroup_memory_free(tmp_path / "nothing", tmp_path / "nowhere") is None
    group(tmp_path, memory__max="max", memory__current=5 * MB)
    assert cgroup_memory_free(tmp_path, own(tmp_path, "0::/\n")) is None


def test_a_container_has_what_is_below_its_limit(tmp_path: Path) -> None:
    group(tmp_path, memory__max=500 * MB, memory__current=100 * MB)
    assert cgroup_memory_free(tmp_path, own(tmp_path, "0::/\n")) == 400 * MB


def test_files_that_are_only_cached_take_nothing(tmp_path: Path) -> None:
    stat = f"anon {100 * MB}\nfile {250 * MB}\ninactive_file {200 * MB}\nactive_file {50 * MB}"
    group(tmp_path, memory__max=500 * MB, memory__current=350 * MB, memory__stat=stat)
    assert cgroup_memory_free(tmp_path, own(tmp_path, "0::/\n")) == 400 * MB


def test_the_tightest_of_the_groups_above_counts(tmp_path: Path) -> None:
    group(tmp_path / "slice", memory__max=300 * MB, memory__current=100 * MB)
    group(tmp_path / "slice" / "service", memory__max="max", memory__high=900 * MB, memory__current=80 * MB)
    assert cgroup_memory_free(tmp_path, own(tmp_path, "0::/slice/service\n")) == 200 * MB


def test_the_first_version_is_understood_too(tmp_path: Path) -> None:
    no_limit = 9223372036854771712
    group(tmp_path / "memory", memory__limit_in_bytes=no_limit, memory__usage_in_bytes=900 * MB)
    stat = f"total_inactive_file {30 * MB}\ninactive_file {10 * MB}"
    inner = {"memory__limit_in_bytes": 500 * MB, "memory__usage_in_bytes": 100 * MB, "memory__stat": stat}
    group(tmp_path / "memory" / "jobs" / "one", **inner)
    groups = own(tmp_path, "5:cpu:/jobs/one\n4:memory:/jobs/one\n0::/\n")
    assert cgroup_memory_free(tmp_path, groups) == 430 * MB


def test_a_path_of_the_host_leads_to_the_groups_that_are_mounted(tmp_path: Path) -> None:
    """In a container that does not hide its groups, the folders between are not there."""
    group(tmp_path / "memory", memory__limit_in_bytes=500 * MB, memory__usage_in_bytes=100 * MB)
    assert cgroup_memory_free(tmp_path, own(tmp_path, "4:memory:/docker/0123\n")) == 400 * MB


def test_what_is_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    group(tmp_path, memory__max=100 * MB, memory__current=120 * MB)
    assert cgroup_memory_free(tmp_path, own(tmp_path, "0::/\n")) == 0
