"""`firsttoken engine`: a model behind a socket, for the workers that share it. No database."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from inference.errors import EngineStopped
from worker.config import VERSION, Config
from worker.edge.listener import BACKLOG, listening
from worker.engines.address import Address
from worker.engines.engine_app import build_engine_app, drain
from worker.engines.shared_token import read_token
from worker.errors import StartError
from worker.garbage import settle
from worker.home import Home
from worker.start import open_model
from worker.stop import Stop
from worker.supervisor import Supervisor

SOCKET = "engine.sock"


async def serve_engine(config: Config, *, began: float) -> None:
    """Run until asked to stop; `began` is the monotonic time since which somebody waits.

    Raises StartError and the parts' own errors, each of one line for people.
    """
    task = asyncio.current_task()
    assert task is not None
    stop = Stop(task)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.ask)
    Home(config.home).prepare()
    address, token = _address(config), read_token(config)
    if token is None and not address.is_local:
        raise StartError(
            f"an engine that listens to a network needs --token-file, a file with a secret (--listen {address})"
        )
    with bound(address) as listener:
        async with open_model(config, Supervisor()) as model:
            app = build_engine_app(model, token)
            settle()
            async with listening(app, config, listener):
                stop.serving = True
                seconds = time.monotonic() - began
                where = _where(address, listener)
                print(
                    f"Firsttoken engine {VERSION} is ready after {seconds:.1f} s: {model.name} at {where}", flush=True
                )
                await stop.wanted(lambda: model.lost)
                await drain(app, config.drain_s, stop.hurried)
                if model.lost:  # whoever supervises this process starts another one
                    raise EngineStopped(model.failed)


def _address(config: Config) -> Address:
    """Raises StartError: the home may have a name that is too long for a socket."""
    try:
        return Address.listening(config.listen or f"unix:{config.home / SOCKET}")
    except ValueError as error:
        raise StartError(f"the socket of an engine {error}: choose another place with --listen") from error


@contextmanager
def bound(address: Address) -> Iterator[socket.socket]:
    """The socket, taken before anything slow. That of a path goes with the engine. Raises StartError."""
    try:
        listener = _unix(address.path) if address.path else _tcp(address)
    except OSError as error:
        taken = "is already in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
        raise StartError(f"{address} {taken} (--listen)") from error
    try:
        yield listener
    finally:
        listener.close()
        if address.path:
            with suppress(OSError):
                address.path.unlink()


def _tcp(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family)


def _unix(path: Path) -> socket.socket:
    """For this account only. A socket that a killed engine left behind is taken over."""
    with socket.socket(socket.AF_UNIX) as other:
        if other.connect_ex(str(path)) == 0:
            raise OSError(errno.EADDRINUSE, "in use")
    if path.is_socket():
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _where(address: Address, listener: socket.socket) -> Address:
    return address if address.path else Address(address.host, listener.getsockname()[1])
