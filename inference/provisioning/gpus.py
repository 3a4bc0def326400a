"""The GPUs of this machine as the kernel knows them, whatever llama.cpp was built for. Uses the standard library alone:
setup asks before anything else is installed."""

from __future__ import annotations

import platform
from pathlib import Path

NVIDIA_FOLDER = Path("/proc/driver/nvidia/gpus")
CARDS, DOORS = Path("/sys/class/drm"), Path("/dev/dri")  # what the kernel drives, and the files that programs open
VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}  # of PCI; what virtual machines emulate is not here


def gpus() -> list[str]:
    """The vendors of the GPUs that the kernel drives and a program may see; a container sees those it was given."""
    found = ["NVIDIA"] * (NVIDIA_FOLDER.is_dir() and any(NVIDIA_FOLDER.iterdir()))
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        found.append("Apple")
    for door in sorted(DOORS.glob("renderD*")):
        vendor = VENDORS.get(_first_line(CARDS / door.name / "device" / "vendor"))
        if vendor is not None and vendor not in found:
            found.append(vendor)
    return found


def _first_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
