"""Draining: a stopping worker admits nothing new, lets running requests finish in time, and ends the rest with an error
to the client.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from worker.edge.health_probes import HealthProbes
from worker.lifecycle.supervisor import first_of
from worker.runs.batches.batch_worker import BATCHES
from worker.runs.manager import RUNS
from worker.services import CHECKERS, DRAINING, LEAVING, REQUESTS

# The worker has stopped within two seconds after its drain timeout (or that for balancers, which starts with it), and
# within one after a second signal.
MOVE_S = 2.0  # a connection that is used occasionally is used within this time
LEAVE_S = 1.0  # to release lines of batches: no client waits for them here, and another worker starts them again
AWARE_S = 7.0  # from the beginning until every balancer knows: three probes at 2 s intervals, haproxy's default
ACT_S = 0.1  # for a balancer to act on its last probe
END_S = 0.5  # to store and send final events; slow readers are not waited for longer
GIVE_UP_S = 0.2  # for everything else: uploads, embeddings, streams from other workers


async def make_room(app: web.Application, drain_s: float, stop: asyncio.Event) -> None:
    """Other processes take new connections. Clients of open connections are told to close with their next response and
    reconnect; a response that had already begun cannot say so, the one after it does."""
    app[LEAVING].set()
    await first_of(app[REQUESTS].idle(), stop.wait(), within_s=drain_s)
    await first_of(stop.wait(), within_s=MOVE_S)


async def drain(app: web.Application, drain_s: float, hurried: asyncio.Event) -> None:
    """Return when nothing is in progress: once all responses are sent, or what is left was ended after `drain_s`
    seconds or on a second signal.

    Meanwhile, and until balancers have noticed, the socket stays open: new requests are sent elsewhere (503), also on
    connections that would otherwise close before their request is answered.
    """
    requests, runs, checkers = app[REQUESTS], app[RUNS], app[CHECKERS]
    aware_at = asyncio.get_running_loop().time() + AWARE_S
    app[DRAINING].set()
    checkers.stop()
    runs.backlog.stop()
    await first_of(app[BATCHES].stop(), within_s=LEAVE_S)
    await first_of(_idle(app), hurried.wait(), within_s=drain_s)
    await first_of(_end(app), within_s=END_S)
    if not checkers.are_aware and not app[LEAVING].is_set():  # only other members of a crew are probed
        left_s = aware_at - asyncio.get_running_loop().time()
        await first_of(_noticed(checkers), hurried.wait(), within_s=max(0.0, left_s))
    requests.interrupt()
    await first_of(requests.idle(), within_s=GIVE_UP_S)


async def _idle(app: web.Application) -> None:
    """Wait for responses that a client reads, and for background ones."""
    await app[REQUESTS].idle()
    await app[RUNS].idle()


async def _end(app: web.Application) -> None:
    await app[RUNS].end_all()
    await app[REQUESTS].idle()


async def _noticed(checkers: HealthProbes) -> None:
    await checkers.aware()
    await asyncio.sleep(ACT_S)
