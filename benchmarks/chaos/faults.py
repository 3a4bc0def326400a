"""The faults that are injected into a running system. Each call injects one; the system has to recover by itself."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from benchmarks.chaos.world import World, send

Fault: TypeAlias = Callable[[World, random.Random], Awaitable[None]]

STALL_S = (0.2, 3.0)


async def connections_lost(world: World, _: random.Random) -> None:
    """The database closes all connections, whatever their state."""
    send(world.backends(), signal.SIGTERM)


async def connection_lost(world: World, dice: random.Random) -> None:
    """The database closes one connection."""
    if backends := world.backends():
        send([dice.choice(backends)], signal.SIGTERM)


async def backend_killed(world: World, dice: random.Random) -> None:
    """One database process crashes, after which the whole database restarts and recovers."""
    if backends := world.backends():
        send([dice.choice(backends)], signal.SIGKILL)


async def database_stalled(world: World, dice: random.Random) -> None:
    """The database stalls for a while, as on a machine that swaps or with a disk that hangs."""
    pids = world.database()
    send(pids, signal.SIGSTOP)
    try:
        await asyncio.sleep(dice.uniform(*STALL_S))
    finally:
        send(pids, signal.SIGCONT)


async def database_killed(world: World, _: random.Random) -> None:
    """The postmaster dies; only the worker restarts it."""
    if postmaster := world.postmaster():
        send([postmaster], signal.SIGKILL)


async def worker_killed(world: World, _: random.Random) -> None:
    send([world.worker], signal.SIGKILL)


async def worker_stopped(world: World, _: random.Random) -> None:
    """An orderly stop under load, as in a rolling restart."""
    send([world.worker], signal.SIGTERM)


FAULTS: dict[str, Fault] = {
    "connection lost": connection_lost,
    "all connections lost": connections_lost,
    "database process killed": backend_killed,
    "database stalled": database_stalled,
    "database killed": database_killed,
    "worker killed": worker_killed,
    "worker stopped": worker_stopped,
}
VANISH = "client vanished"  # done by the traffic itself
