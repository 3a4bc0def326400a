"""How a worker stops: it takes nothing new, what runs gets its time, and the rest ends with a word to its client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from aiohttp import web

from worker.batches.batch_worker import BATCHES
from worker.edge.health_probes import HealthProbes
from worker.runs.manager import RUNS
from worker.services import CHECKERS, DRAINING, LEAVING, REQUESTS

# The worker has stopped within two seconds after its time to drain (or that for balancers, which begins with it), and
# within one after a second signal.
MOVE_S = 2.0  # a connection that is used now and then is used within so long
LEAVE_S = 1.0  # for lines of batches to be given back: nobody waits for them here, and another worker begins them again
AWARE_S = 7.0  # from the beginning until every balancer knows: three looks, one every 2 s, as haproxy's default
ACT_S = 0.1  # for a balancer to act on the last look
END_S = 0.5  # for ends to be stored and told; a client that reads slowly is not waited for longer
GIVE_UP_S = 0.2  # for everything else: uploads, embeddings, streams from other workers


async def make_room(app: web.Application, drain_s: float, stop: asyncio.Event) -> None:
    """Others take new connections. Clients of those that are open hear of it with their next answer, and go on there;
    who reads one that began before hears of it with the one behind that."""
    app[LEAVING].set()
    await first_of(app[REQUESTS].idle(), stop.wait(), within_s=drain_s)
    await first_of(stop.wait(), within_s=MOVE_S)


async def drain(app: web.Application, drain_s: float, hurried: asyncio.Event) -> None:
    """Return when nothing is in progress: as soon as all answers are out, or what is left was ended after `drain_s`
    seconds, or once somebody is in a hurry.

    Meanwhile, and until balancers have seen it, the socket stays open: newcomers are told to go elsewhere (503), also
    on connections that would otherwise end below their request.
    """
    requests, runs, checkers = app[REQUESTS], app[RUNS], app[CHECKERS]
    aware_at = asyncio.get_running_loop().time() + AWARE_S
    app[DRAINING].set()
    checkers.stop()
    runs.backlog.stop()
    await first_of(app[BATCHES].stop(), within_s=LEAVE_S)
    await first_of(_idle(app), hurried.wait(), within_s=drain_s)
    await first_of(_end(app), within_s=END_S)
    if not checkers.are_aware and not app[LEAVING].is_set():  # where it left, others are looked at
        left_s = aware_at - asyncio.get_running_loop().time()
        await first_of(_noticed(checkers), hurried.wait(), within_s=max(0.0, left_s))
    requests.interrupt()
    await first_of(requests.idle(), within_s=GIVE_UP_S)


async def _idle(app: web.Application) -> None:
    """Answers that somebody reads, and those that go on alone."""
    await app[REQUESTS].idle()
    await app[RUNS].idle()


async def _end(app: web.Application) -> None:
    await app[RUNS].end_all()
    await app[REQUESTS].idle()


async def _noticed(checkers: HealthProbes) -> None:
    await checkers.aware()
    await asyncio.sleep(ACT_S)


async def first_of(*waits: Awaitable[object], within_s: float | None = None) -> None:
    """Return when one of them is over, or after the time."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
