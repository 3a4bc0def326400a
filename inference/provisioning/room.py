"""How much memory models and conversations may take: what is free, less what others will need. Pure but for `here`."""

from __future__ import annotations

from dataclasses import dataclass

from inference.config import EngineConfig
from inference.llama import devices, has_gpu
from inference.provisioning import machine
from inference.provisioning.sizes import in_words

# Of free host memory: what other programs do meanwhile, and pages of files that must stay for anything to be quick.
HOST_SHARE = 0.9
# For this process and its database, which are not there yet when it is asked: 0.16 GB and 0.06 at rest; the embedder at
# work, requests in progress and what Postgres keeps of a database that is searched take as much again.
HOST_RESERVE_BYTES = 500 * 10**6
GPU_SHARE = 0.95  # of what is free there; the rest is for whoever else draws or computes
GPU_RESERVE_BYTES = 300 * 10**6  # the driver's own, and the allocator's pools


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes. `gpu_free` is None where no GPU computes, `host_free` where nobody tells. `given`: the most that a person
    lets be taken where the KV cache lives, 0 for no word of it; then it is not for us to leave a reserve there."""

    host_free: int | None
    gpu_free: int | None = None
    beside: int = 0  # host memory that other models of this process will take
    given: int = 0

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
        return self.given or max(0.0, self.gpu_free * GPU_SHARE - GPU_RESERVE_BYTES)

    def __str__(self) -> str:
        """What there is, for people."""
        if self.given:
            return f"{in_words(self.given)} may be taken (--memory-mb)"
        host = "" if self.host_free is None else _told(self.host, self.host_free, "memory")
        gpu = "" if self.gpu_free is None else _told(self.gpu, self.gpu_free, "the GPU's memory")
        return " and ".join(part for part in (gpu, host) if part) or "nobody tells how much there is"


def _told(share: float, free: int, what: str) -> str:
    return f"{in_words(int(share))} of the {in_words(free)} of {what} that are free may be taken"


def here(config: EngineConfig) -> Room:
    uses_gpu = has_gpu() and config.gpu_layers != 0
    gpu_free = sum(device.free_bytes for device in devices() if device.is_gpu) if uses_gpu else None
    return Room(machine.memory_available(), gpu_free, config.beside_bytes, config.memory_bytes_max)
