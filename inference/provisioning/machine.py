"""What the machine has to offer, as the operating system tells. Linux in full; elsewhere what Python knows."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from inference.provisioning import cgroup

CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def cpu_name() -> str:
    names = [value for name, value in _lines(CPUINFO) if name == "model name"]
    return names[0] if names else platform.processor() or platform.machine()


def cpu_features() -> frozenset[str]:
    """Instruction sets of the first processor (x86 says flags, ARM says Features); empty where nobody tells."""
    for name, value in _lines(CPUINFO):
        if name in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_available() -> int | None:
    """Bytes that can be had without swapping, also under the limit of a container; None where nobody tells."""
    free = [int(value.split()[0]) * 1024 for name, value in _lines(MEMINFO) if name == "MemAvailable"]
    group = cgroup.memory_free()
    return min([*free, *([] if group is None else [group])], default=None)


def has_nvidia_driver() -> bool:
    return NVIDIA_DRIVER.exists() or shutil.which("nvidia-smi") is not None


def disk_free(folder: Path) -> int:
    """Bytes; of the nearest parent where the folder does not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _lines(path: Path) -> list[tuple[str, str]]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    pairs = (line.partition(":") for line in text.splitlines())
    return [(name.strip(), value.strip()) for name, _, value in pairs]
