"""`firsttoken engine`: a model behind a socket, for the workers that share it. No database."""

from __future__ import annotations

import socket
import time
from contextlib import nullcontext

from inference.errors import EngineStopped
from worker.config import VERSION, Config
from worker.edge.listener import listening
from worker.engines.engine_app import build_engine_app, drain
from worker.engines.engine_config import read_token
from worker.engines.local_model import open_model
from worker.errors import StartError
from worker.home import Home
from worker.lifecycle.address import Address, listen_socket
from worker.lifecycle.crew.member import Member
from worker.lifecycle.process import StopSignals, freeze, say
from worker.lifecycle.supervisor import Supervisor

SOCKET = "engine.sock"


async def serve_engine(config: Config, *, began: float, member: Member | None = None) -> None:
    """Run until asked to stop; `began` is the monotonic time when the command started.

    Raises StartError and the parts' own errors, each with a one-line message for people.
    """
    stop = StopSignals.by_signals()
    Home(config.home).prepare()
    address, token = _address(config), read_token(config)
    if token is None and not address.is_local:
        raise StartError(
            f"an engine that listens to a network needs --token-file, a file with a secret (--listen {address})"
        )
    async with member.on_duty(stop) if member else nullcontext():
        with listen_socket(address) as listener:
            async with open_model(config, Supervisor(), of=member.model if member else None) as model:
                app = build_engine_app(model, token)
                freeze()
                async with listening(app, config, listener):
                    stop.serving = True
                    if member is None:
                        seconds, where = time.monotonic() - began, _where(address, listener)
                        say(f"Firsttoken engine {VERSION} is ready after {seconds:.1f} s: {model.name} at {where}")
                    await stop.wanted(lambda: model.failed)
                    await drain(app, config.drain_s, stop.hurried)
                    if model.failed:  # the process manager starts another one
                        raise EngineStopped(model.failed)


def _address(config: Config) -> Address:
    """Raises StartError if the home folder's path is too long for a socket."""
    try:
        return Address.listening(config.listen or f"unix:{config.home / SOCKET}")
    except ValueError as error:
        raise StartError(f"the socket of an engine {error}: choose another place with --listen") from error


def _where(address: Address, listener: socket.socket) -> Address:
    return address if address.path else Address(address.host, listener.getsockname()[1])
