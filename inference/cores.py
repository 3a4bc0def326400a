"""The processor cores of this process: what its affinity and its control groups leave, and which are halves of one. And
these groups (containers, services, slices; Linux), in the formats of versions 1 and 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import ceil, inf
from pathlib import Path

MOUNT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def control_groups(controller: str, mount: Path, own: Path) -> Iterator[Path]:
    """The folders of this process's groups, innermost first. In a container the path may be the host's, and the group
    itself is the root of the mount."""
    for line in text_of(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = mount / controller if controllers else mount
        group = root / path.lstrip("/")
        while group != root and root in group.parents:
            yield group
            group = group.parent
        yield root


def text_of(path: Path) -> str:
    """Empty if the file cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def number_in(path: Path) -> int | None:
    """None if the file is missing or says "max" or -1."""
    text = text_of(path).strip()
    return int(text) if text.isdigit() else None


PROCESSORS = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Processors, or halves of one, that this process may keep busy; a fraction counts as one."""
    return max(1, min(len(affinity()), ceil(min(cpu_quota(), 2**16))))


def physical_cores(processors: Path = PROCESSORS) -> int:
    """Of the usable ones: two threads on the halves of a core are hardly faster than one."""
    siblings = {text_of(processors / f"cpu{number}/topology/thread_siblings_list") or number for number in affinity()}
    return min(len(siblings), usable_cores())


def cpu_quota(mount: Path = MOUNT, own: Path = OWN) -> float:
    """Cores' worth of time that the control groups of this process grant, those of parents included."""
    return min((quota_of(group) for group in control_groups("cpu", mount, own)), default=inf)


def quota_of(group: Path) -> float:
    if fields := text_of(group / "cpu.max").split():
        return inf if fields[0] == "max" else int(fields[0]) / int(fields[1])
    quota, period = number_in(group / "cpu.cfs_quota_us"), number_in(group / "cpu.cfs_period_us")
    return quota / period if quota and period else inf


def affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
