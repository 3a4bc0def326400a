"""The GPUs of this machine as known to the kernel, whatever llama.cpp was built for. Uses only the standard library,
because setup runs it before anything else is installed."""

from __future__ import annotations

import platform
from pathlib import Path

from inference.cores import text_of

NVIDIA_FOLDER = Path("/proc/driver/nvidia/gpus")
CARDS, DOORS = Path("/sys/class/drm"), Path("/dev/dri")  # the kernel's devices, and the files that programs open
VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}  # PCI ids; excludes GPUs that VMs emulate


def gpus() -> list[str]:
    """The vendors of the GPUs that are visible to programs; a container sees only those passed to it."""
    found = ["NVIDIA"] * (NVIDIA_FOLDER.is_dir() and any(NVIDIA_FOLDER.iterdir()))
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        found.append("Apple")
    for door in sorted(DOORS.glob("renderD*")):
        vendor = VENDORS.get(text_of(CARDS / door.name / "device" / "vendor").strip())
        if vendor is not None and vendor not in found:
            found.append(vendor)
    return found
