"""A worker at work: from its parts to a listening worker, and to its end without losing a response."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import AsyncExitStack, closing, nullcontext

from aiohttp import web

from inference.errors import EngineStopped
from inference.provisioning.catalogue import purpose_of
from worker.app import build_app
from worker.auth.keys import LOCAL_TENANT, sign_in_link
from worker.auth.scope import ALL
from worker.config import Config
from worker.edge.listener import listening
from worker.home import Home, write_atomically
from worker.lifecycle.address import Address, join, listen_socket, url_of
from worker.lifecycle.crew.member import Member
from worker.lifecycle.drain import drain, make_room
from worker.lifecycle.loading_app import serving_progress
from worker.lifecycle.process import StopSignals, freeze, give_notice, say
from worker.lifecycle.ready_file import Ready, ready_files
from worker.lifecycle.supervisor import first_of
from worker.routes.health import beside
from worker.runs.manager import RUNS
from worker.samples import reading_samples
from worker.serve import Parts
from worker.services import CREW, REQUESTS, Services
from worker.start import open_services


async def serve_alone(
    config: Config, home: Home, parts: Parts, stop: StopSignals, listener: socket.socket, began: float
) -> None:
    """The port tells how far the start is until this worker is ready."""
    async with AsyncExitStack() as meanwhile:
        await meanwhile.enter_async_context(serving_progress(parts.loading, config, listener))
        async with open_services(config, home, parts) as (services, runs, batch_worker):
            ready = await _introduce(services, home, url_of(config.host, listener.getsockname()[1]))
            app = build_app(services, runs, batch_worker)
            freeze()
            await meanwhile.aclose()
            async with reading_samples(services), listening(app, config, listener):
                await _serving(stop, services, app, config, ready, began)


async def _serving(
    stop: StopSignals, services: Services, app: web.Application, config: Config, ready: Ready, began: float
) -> None:
    """Serve until a stop is requested. Raises EngineStopped when the engine has failed or lost its device, so that the
    process manager starts another worker."""

    over = services.engines.over if services.engines else lambda: None
    stop.serving = True
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, services.reload)
    files = [path for path in (Home(config.home).ready_file, config.ready_file) if path]
    with ready_files(files, ready):
        say(ready.banner(time.monotonic() - began, config.home))
        await stop.wanted(over)
    reason = over()
    if app[REQUESTS].busy or app[RUNS].busy:
        give_notice(config.drain_s)
    await drain(app, config.drain_s, stop.hurried)
    if reason:
        raise EngineStopped(f"{reason}; another process must take over")


async def serve_in_crew(config: Config, home: Home, parts: Parts, stop: StopSignals, member: Member) -> None:
    """The port is joined once this worker is ready: until then the other members take all connections."""
    async with open_services(config, home, parts, member.name) as (services, runs, batch_worker):
        if member.introduces:
            ready = await _introduce(services, home, url_of(config.host, config.port))
        app = build_app(services, runs, batch_worker)
        app[CREW] = member
        freeze()
        samples = reading_samples(services) if member.reads_samples else nullcontext()
        with closing(join(config.host, config.port)) as listener, listen_socket(Address(path=member.socket)) as private:
            async with samples, listening(app, config, listener) as server, listening(beside(app), config, private):
                stop.serving = True
                if member.introduces:
                    member.introduce(ready)
                await first_of(stop.asked.wait(), member.leaving.wait())
                if not stop.asked.is_set():
                    await server.leave()
                    await make_room(app, config.drain_s, stop.asked)
                await drain(app, config.drain_s, stop.hurried)


async def _introduce(services: Services, home: Home, url: str) -> Ready:
    """Make sure that the person who runs the worker has a key and a link."""
    keys = services.authenticator.keys
    tenant_id = await keys.tenant(LOCAL_TENANT)
    with home.locked():  # two workers that start at once share one key
        key = home.read_key()
        if not key or await keys.authenticate(key) is None:
            _, key = await keys.create(tenant_id, "this machine", scopes=ALL)
            write_atomically(home.key_file, f"{key}\n".encode())
    token = await keys.create_link(tenant_id, scopes=ALL)
    model = services.model_registry.best(None).name
    about = ": ".join(filter(None, (model, purpose_of(model))))
    return Ready(url, key, sign_in_link(url, token), f"{url}/ops", os.getpid(), model=about)
