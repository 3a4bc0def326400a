"""The resources of this machine, as reported by the operating system: processor, memory, disk, and how much memory
models and conversations may use. Complete on Linux; elsewhere as far as Python knows.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inference.config import EngineConfig
from inference.cores import MOUNT, OWN, control_groups, number_in, text_of
from inference.llama import Device, computing, devices, has_gpu
from inference.provisioning.memory import in_words
from inference.weight_placement import Split

CPUINFO, MEMINFO, STATM = Path("/proc/cpuinfo"), Path("/proc/meminfo"), Path("/proc/self/statm")
CGROUP_UNLIMITED_BYTES = 2**60  # version 1 of control groups reports "no limit" as a number of about that size
GROUP_LIMIT, ADDRESS_LIMIT = " below the limit of its control group", " below its limit of addresses (ulimit -v)"
# Of free host memory; the rest is for other programs, and for the file cache that keeps everything fast.
HOST_SHARE = 0.9
# For this process and its database, which have not grown yet when memory is measured: 0.16 GB and 0.06 GB idle; a busy
# embedder, requests in progress and the buffers of Postgres take the same again.
HOST_RESERVE_BYTES = 500 * 10**6
GPU_SHARE = 0.95  # of its free memory; the rest is for other programs that use the GPU
GPU_RESERVE_BYTES = 300 * 10**6  # for the driver, and the allocator's pools


def cpu_name() -> str:
    names = [value for name, value in _lines(CPUINFO) if name == "model name"]
    return names[0] if names else platform.processor() or platform.machine()


def cpu_features() -> frozenset[str]:
    """Instruction sets of the first processor (called flags on x86, Features on ARM); empty if unknown."""
    for name, value in _lines(CPUINFO):
        if name in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def idle_cores() -> float:
    """Processors of the machine, not of a container, that no program used in the last minute, by the load average."""
    return max(0.0, (os.cpu_count() or 1) - os.getloadavg()[0])


def memory_available() -> int | None:
    """Bytes available without swapping, within the limits of a container and of this process; None if unknown."""
    return free_below_limits()[0]


def free_below_limits() -> tuple[int | None, str]:
    """The same, and as a phrase the limit below which they are free; empty where that is the machine's memory."""
    found = {"": _meminfo("MemAvailable"), GROUP_LIMIT: cgroup_memory_free(), ADDRESS_LIMIT: addresses_free()}
    known = [(free, limit) for limit, free in found.items() if free is not None]
    return min(known, default=(None, ""))


def addresses_free(own: Path = STATM) -> int | None:
    """Bytes of address space that this process may still take; None without a limit, or if unknown. Where there are no
    more, llama.cpp aborts the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    taken = text_of(own).split()
    if limit == resource.RLIM_INFINITY or not taken:
        return None
    return max(0, limit - int(taken[0]) * resource.getpagesize())


def disk_free(folder: Path) -> int:
    """Free bytes; those of the nearest existing parent if the folder does not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _meminfo(wanted: str) -> int | None:
    """Bytes; None if unknown."""
    return next((int(value.split()[0]) * 1024 for name, value in _lines(MEMINFO) if name == wanted), None)


def _lines(path: Path) -> list[tuple[str, str]]:
    pairs = (line.partition(":") for line in text_of(path).splitlines())
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def cgroup_memory_free(mount: Path = MOUNT, own: Path = OWN) -> int | None:
    """Bytes up to the tightest memory limit of this process's control groups (containers, services, slices; Linux).

    None without a limit, or if unknown. Limits of parent groups count as well. File cache does not count as used: the
    kernel reclaims it.
    """
    return min(
        (free for group in control_groups("memory", mount, own) if (free := _free_below_limits(group)) is not None),
        default=None,
    )


def _free_below_limits(group: Path) -> int | None:
    """Bytes left below the limits of one group, in the format of version 2 or of version 1."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [limit for name in names if (limit := number_in(group / name)) is not None]
    used = number_in(group / "memory.current") or number_in(group / "memory.usage_in_bytes")
    limit = min(limits, default=CGROUP_UNLIMITED_BYTES)
    if limit >= CGROUP_UNLIMITED_BYTES or used is None:
        return None
    return max(0, limit - max(0, used - _file_cache(group)))


def _file_cache(group: Path) -> int:
    facts = dict(line.split(" ", 1) for line in text_of(group / "memory.stat").splitlines() if " " in line)
    return sum(int(facts.get(f"total_{name}", facts.get(name, 0))) for name in ("inactive_file", "active_file"))


@dataclass(frozen=True, slots=True)
class Room:
    """How much memory models and conversations may use, in bytes: what is free, minus what others will need.

    `gpu_free` is None without a GPU, `host_free` if unknown. `given`: the user's limit for the memory that holds the KV
    cache, 0 if unset; no reserve is kept there then.
    """

    host_free: int | None
    gpu_free: int | None = None
    beside: int = 0  # host memory that other models of this process will take
    given: int = 0
    gpus: int = 1  # number of GPUs whose memory `gpu_free` is
    gpu_own: float = float("inf")  # beyond this, GPU memory is taken from the host's
    limit: str = ""  # which limit leaves `host_free`, if it is not the memory of the machine

    @property
    def host(self) -> float:
        if self.given and self.gpu_free is None:
            return self.given
        if self.host_free is None:
            return float("inf")
        return max(0.0, self.host_free * HOST_SHARE - HOST_RESERVE_BYTES - self.beside)

    @property
    def gpu(self) -> float:
        if self.gpu_free is None:
            return 0.0
        return self.given or max(0.0, self.gpu_free * GPU_SHARE - GPU_RESERVE_BYTES * self.gpus)

    def left_on_host(self, on_host: float, on_gpu: float) -> float:
        """Bytes of host memory left with that much used there and on the GPUs; negative if it does not suffice."""
        return self.host - on_host - max(0.0, on_gpu - self.gpu_own)

    def __str__(self) -> str:
        """A phrase for messages to the user."""
        if self.given:
            return f"{in_words(self.given)} may be used (--memory-mb)"
        host = "" if self.host_free is None else _share_in_words(self.host, self.host_free, "memory", self.limit)
        gpu = "" if self.gpu_free is None else _share_in_words(self.gpu, self.gpu_free, "the GPU's memory")
        return " and ".join(part for part in (gpu, host) if part) or "its size is unknown"


def _share_in_words(share: float, free: int, what: str, limit: str = "") -> str:
    return f"{in_words(int(share))} of the {in_words(free)} of {what} that are free{limit} may be used"


def room_of(config: EngineConfig) -> Room:
    """The memory of this machine that a configuration may use."""
    host_free, limit = free_below_limits()
    if not has_gpu() or config.gpu_layers == 0:
        return Room(host_free, beside=config.beside_bytes, given=config.memory_bytes_max, limit=limit)
    split = Split.parse(config.gpu_split)
    gpus = computing(devices(), split)
    return Room(
        host_free,
        free_together(gpus, split),
        config.beside_bytes,
        config.memory_bytes_max,
        gpus=max(1, len(gpus)),
        gpu_own=own_memory(gpus, _meminfo("MemTotal")),
        limit=limit,
    )


def free_together(gpus: Sequence[Device], split: Split) -> int:
    """How many bytes of one model these GPUs can hold. Without proportions llama.cpp splits it by free memory; with
    them, the first GPU that is full sets the limit."""
    shares = [share for share in split.shares if share][: len(gpus)]
    if not shares:
        return sum(gpu.free_bytes for gpu in gpus)
    return int(min(gpu.free_bytes * sum(shares) / share for gpu, share in zip(gpus, shares, strict=True)))


def own_memory(gpus: Sequence[Device], host_total: int | None) -> float:
    """Bytes of these GPUs that are certainly not host memory. A GPU in the CPU's package reports the sum of what the
    firmware reserved for it, which the host does not count as its own, and what it may borrow, which is never more than
    the host has."""
    if host_total is None or not any(gpu.uses_host_memory for gpu in gpus):
        return float("inf")
    return sum(max(0, gpu.memory_bytes - host_total) if gpu.uses_host_memory else gpu.memory_bytes for gpu in gpus)
