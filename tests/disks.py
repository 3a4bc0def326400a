"""The disk that tests write to, and small ones that a test may fill."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from inference.provisioning.machine import memory_available

MEMORY = Path("/dev/shm")

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")


def in_memory(bytes_: int) -> Path | None:
    """A disk in memory with so much room, from which programs may run; None if this machine has none."""
    with suppress(OSError):
        disk = os.statvfs(MEMORY)
        room = min(disk.f_bavail * disk.f_frsize, memory_available() or 0)
        if room >= bytes_ and os.access(MEMORY, os.W_OK) and not disk.f_flag & os.ST_NOEXEC:
            return MEMORY
    return None


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"this root may not mount: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    with mounted(folder, "-t", "tmpfs", "-o", f"size={megabytes}m,mode=711", "tmpfs"):
        yield


def fill(folder: Path) -> Path:
    """Write a file until the disk of this folder is full."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**20, 4096, 1):
            with suppress(OSError):
                while file.write(b"\0" * size):
                    pass
    return filler
