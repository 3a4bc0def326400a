"""Processes that train one model together, each on rows of its own.

Two processes of one thread lose far less on shared cores than two threads that meet after every operator.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, distributed

# For the members' C library: the memory of a step serves the next one, in large pages. Given back and asked for again,
# it costs a tenth of a step in page faults.
MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


@dataclass(frozen=True, slots=True)
class Team:
    """One of `size` processes. Alone, nothing is exchanged."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def average(self, parameters: Sequence[Tensor]) -> None:
        """The gradients, over all processes."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        distributed.all_reduce(flat)
        flat /= self.size
        for gradient, mean in zip(
            gradients, torch.split(flat, [gradient.numel() for gradient in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))

    def share(self, total: int, rank: int | None = None) -> slice:
        """The part of a list that this process, or another, works on."""
        of = self.rank if rank is None else rank
        return slice(total * of // self.size, total * (of + 1) // self.size)

    def exchange(self, results: Tensor) -> None:
        """Each process has filled its share of the first dimension; afterwards all have everything."""
        for rank in range(self.size) if self.size > 1 else ():
            part = results[self.share(len(results), rank)]
            if len(part):
                distributed.broadcast(part, rank)

    def agree(self, value: float) -> float:
        """What the leader says."""
        if self.size == 1:
            return value
        said = torch.tensor([value])
        distributed.broadcast(said, 0)
        return float(said)

    def gather(self, value: Any) -> list[Any]:
        """What each process says."""
        if self.size == 1:
            return [value]
        said = [None] * self.size
        distributed.all_gather_object(said, value)
        return said


def run(size: int, work: Callable[[Team], None]) -> None:
    """Have `work`, which must be picklable, done by a team; by this process where one is enough.

    Raises ChildProcessError where one of several failed: it has printed why.
    """
    if size == 1:
        work(Team())
        return
    processes = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        members = [processes.Process(target=_member, args=(rank, size, work, meeting)) for rank in range(size)]
        os.environ.update(MEMORY)
        for member in members:
            member.start()
        try:
            _wait(members)
        finally:
            for member in members:
                member.terminate()
                member.join()


def _wait(members: Sequence[BaseProcess]) -> None:
    """Until all are done or one fails: the others would wait for it."""
    waiting = {member.sentinel: member for member in members}
    while waiting:
        for sentinel in wait(list(waiting)):
            member = waiting.pop(cast(int, sentinel))
            member.join()  # its sentinel may be ready a moment before its exit code is
            if member.exitcode:
                raise ChildProcessError("a process of the training has failed")


def _member(rank: int, size: int, work: Callable[[Team], None], meeting: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started the team ends it
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    try:
        work(Team(rank, size))
    finally:
        distributed.destroy_process_group()
    # Without the interpreter's own end: a thread of gloo's may still hold a tensor, and letting go of it then aborts.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _leave_with_parent() -> None:
    """A team that nobody leads any more would train on, beside the next one."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)
