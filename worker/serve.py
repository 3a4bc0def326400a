"""`firsttoken serve`: from a configuration to a worker that answers, and back to nothing without losing an answer."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson
from aiohttp import web

from inference.errors import EngineStopped, InferenceError
from migrations.embedded.errors import remedy
from retrieval.errors import RetrievalError
from retrieval.ingest import ingest
from worker.app import build_app
from worker.auth.keys import LOCAL_TENANT
from worker.auth.scope import ALL
from worker.auth.sign_in import link
from worker.config import PROJECT, VERSION, Config
from worker.drain import drain
from worker.edge.listener import BACKLOG, listening
from worker.errors import StartError
from worker.garbage import settle
from worker.home import Home, write_atomically
from worker.loading import Loading
from worker.services import Services
from worker.start import open_services
from worker.stop import Stop

log = logging.getLogger("firsttoken.serve")

SAMPLE_STORE = "docs"
# Pages of our own documentation that would answer users' questions in place of those written for users.
NOT_FOR_USERS = (
    "ARCHITECTURE.md",
    "clients.md",
    "HISTORY.md",
    "LOG.md",
    "RELIABILITY.md",
    "scale.md",
    "SECURITY.md",
    "settings.md",
)
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


@dataclass(frozen=True, slots=True)
class Ready:
    """How to reach a worker that answers; the content of the ready file."""

    url: str
    api_key: str = field(repr=False)
    chat_url: str = field(repr=False)  # it signs a browser in
    ops_url: str
    pid: int
    version: str

    def banner(self, seconds: float) -> str:
        return f"""
Firsttoken {self.version} is ready after {seconds:.1f} s. Ctrl-C stops it.

  Chat     {self.chat_url}
           signs one browser in, once; for another one: firsttoken link
  Latency  {self.ops_url}
  API      curl {self.url}/v1/responses -H 'Content-Type: application/json' \\
             -H 'Authorization: Bearer {self.api_key}' -d '{{"input": "Hello!"}}'
"""


async def serve(config: Config, *, began: float) -> None:
    """Run until asked to stop; `began` is the monotonic time since which somebody waits.

    Raises StartError and the parts' own errors, each of one line for people.
    """
    task = asyncio.current_task()
    assert task is not None
    stop = Stop(task)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.ask)
    home = Home(config.home)
    home.prepare()
    loading = Loading()
    with closing(bind(config.host, config.port)) as listener:
        async with AsyncExitStack() as meanwhile:
            await meanwhile.enter_async_context(loading.answered(config, listener))
            async with open_services(config, home, loading) as (services, runs, batch_worker):
                ready = await _introduce(services, home, _url(config.host, listener))
                await _read_samples(services)
                app = build_app(services, runs, batch_worker)
                settle()
                await meanwhile.aclose()
                async with listening(app, config, listener):
                    await _serving(stop, services, app, config, ready, began)


async def _serving(
    stop: Stop, services: Services, app: web.Application, config: Config, ready: Ready, began: float
) -> None:
    """Until somebody wants it to end. Raises EngineStopped when the device is lost, so that whoever supervises this
    process starts another one."""

    def lost() -> bool:
        return bool(services.engine_stats().get("lost"))

    stop.serving = True
    files = [path for path in (Home(config.home).ready_file, config.ready_file) if path]
    with _ready_files(files, ready):
        print(ready.banner(time.monotonic() - began), flush=True)
        await stop.wanted(lost)
    await drain(app, config.drain_s, stop.hurried)
    if lost():
        raise EngineStopped(services.engine_stats()["failed"])


def bind(host: str, port: int) -> socket.socket:
    """Take the port before anything slow, so that a port in use is known at once. Does not listen yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise StartError(
            f"--host {host} is not an address of this machine: {getattr(error, 'strerror', error)}"
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} of {host} is already in use: choose another with --port, or 0 for a free one"
            ) from error
        raise StartError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose others with --host and --port"
        ) from error
    return listener


def _url(host: str, listener: socket.socket) -> str:
    name = ANY_ADDRESS.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{listener.getsockname()[1]}"


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
    return Ready(url, key, link(url, token), f"{url}/ops", os.getpid(), VERSION)


async def _read_samples(services: Services) -> None:
    """Bring the sample knowledge base up to date; files that did not change cost nothing."""
    folder = services.config.docs
    if folder is None or not folder.is_dir():
        return
    tenant_id = await services.authenticator.keys.tenant(LOCAL_TENANT)
    try:
        report = await ingest(
            [folder],
            exclude=NOT_FOR_USERS if folder == PROJECT / "docs" else (),
            store_name=SAMPLE_STORE,
            tenant_id=tenant_id,
            store=services.passages,
            embedders=services.embedders,
            loaders=services.loaders,
        )
    except (RetrievalError, InferenceError) as error:  # its model is not here: all other stores may be fine
        log.warning("the sample knowledge base is not up to date: %s", error)
        return
    for unread in report.errors:
        log.warning("not in the sample knowledge base: %s %s", unread.path, unread.reason)


@contextmanager
def _ready_files(paths: list[Path], ready: Ready) -> Iterator[None]:
    """Present while the worker takes requests. Another worker of this home may have written its own since."""
    content = orjson.dumps(asdict(ready), option=orjson.OPT_INDENT_2)
    try:
        for path in paths:
            _write_ready_file(path, content)
        yield
    finally:
        for path in paths:
            with suppress(OSError):
                if path.read_bytes() == content:
                    path.unlink()


def _write_ready_file(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        todo = remedy(error, "choose another with --ready-file")
        raise StartError(f"{path} cannot be written: {error.strerror}; {todo}") from error
