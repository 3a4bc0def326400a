"""A reader process's task and its limits, as both ends of the socket see them."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, replace
from typing import BinaryIO

LENGTH = struct.Struct("!I")  # of the JSON header at the start of a job or an answer, in bytes
STATUS = struct.Struct("!i")  # of a reader: its exit code, or minus the signal that killed it

# CPU time by file size: the slowest ordinary files (HTML) take half a second per megabyte on a core of 2024; a slow
# core takes four times as long. A file that needs more was crafted to.
CPU_S_MIN = 5
CPU_S_PER_MB = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for reading one file. `wall_s` counts from the moment that the file has a process."""

    wall_s: float
    cpu_s: int  # upper bound for files of any size
    memory_bytes: int = 1024 * 1024 * 1024  # address space; ordinary files need a tenth of it
    answer_bytes: int = 64 * 1024 * 1024  # text and offsets: 20 million characters in most scripts
    niceness: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """`size` bytes of a file follow the header. `split` requests its pieces for embedding too."""

    name: str  # its suffix selects the loader
    size: int
    split: bool
    is_picture: bool  # then it comes back as pixels instead of text
    limits: Limits

    @classmethod
    def of(cls, name: str, size: int, limits: Limits, *, split: bool = False, is_picture: bool = False) -> Job:
        cpu_s = min(limits.cpu_s, CPU_S_MIN + CPU_S_PER_MB * size // 1024**2)
        return cls(name, size, split, is_picture, replace(limits, cpu_s=cpu_s))

    def header(self) -> bytes:
        return framed(json.dumps(asdict(self)).encode())

    @classmethod
    def receive(cls, stream: BinaryIO) -> Job:
        (length,) = LENGTH.unpack(stream.read(LENGTH.size))
        told = json.loads(stream.read(length))
        return cls(**{**told, "limits": Limits(**told["limits"])})


def framed(header: bytes) -> bytes:
    return LENGTH.pack(len(header)) + header
