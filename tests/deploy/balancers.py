"""Balancers as deploy/ configures them, real ones, before workers that do what a test says."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import yaml
from aiohttp import web

from tests.serving import ROOT

START_S = 60.0


class StubWorker:
    """Answers with its name. `ready` is what /readyz says; new requests get 503 while it is not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = True
        self.port = 0
        self.asked = 0
        self.go_on = asyncio.Event()  # for streams that have told their first event
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application(client_max_size=2**24)
        app.add_routes([web.get("/readyz", self._say_ready), web.route("*", "/{path:.*}", self._answer)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = None

    async def _say_ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 503)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if not self.ready:
            return web.json_response({"error": {"code": "draining"}}, status=503)
        self.asked += 1
        if request.path != "/stream":
            return web.json_response({"worker": self.name, "bytes": len(body)})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"data: first of {self.name}\n\n".encode())
        await self.go_on.wait()
        await response.write(b"data: last\n\n")
        return response


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def haproxy(port: int, workers: Sequence[str], folder: Path) -> tuple[list[str], dict[str, str]]:
    program = subprocess.run([ROOT / "deploy/balancer.sh"], check=True, capture_output=True, text=True).stdout.strip()
    addresses = {f"FIRSTTOKEN_WORKER_{number}": worker for number, worker in enumerate(workers, 1)}
    environment = {"FIRSTTOKEN_BIND": f"127.0.0.1:{port}", **addresses}
    return [program, "-db", "-f", str(ROOT / "deploy/haproxy.cfg")], environment


def envoy(port: int, workers: Sequence[str], folder: Path) -> tuple[list[str], dict[str, str]]:
    config: Any = yaml.safe_load((ROOT / "deploy/envoy.yaml").read_text())
    resources = config["static_resources"]
    resources["listeners"][0]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    (group,) = resources["clusters"][0]["load_assignment"]["endpoints"]
    for endpoint, worker in zip(group["lb_endpoints"], workers, strict=True):
        host, _, worker_port = worker.rpartition(":")
        endpoint["endpoint"]["address"]["socket_address"] = {"address": host, "port_value": int(worker_port)}
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(config))
    program = str(Path(sys.executable).parent / "envoy")
    return [program, "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"], {}


Balancer: TypeAlias = Callable[[int, Sequence[str], Path], tuple[list[str], dict[str, str]]]
BALANCERS: dict[str, Balancer] = {"haproxy": haproxy, "envoy": envoy}


@asynccontextmanager
async def balancing(name: str, workers: Sequence[str], folder: Path) -> AsyncIterator[str]:
    """The URL of a balancer that has found a worker that is ready. Raises AssertionError with its log."""
    port, log = free_port(), folder / f"{name}.log"
    process = _started(*BALANCERS[name](port, workers, folder), log)
    try:
        url = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(START_S), aiohttp.ClientSession() as http:
            while await _status(http, url) != 200:
                assert process.poll() is None, log.read_text()
                await asyncio.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


def _started(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})


async def _status(http: aiohttp.ClientSession, url: str) -> int:
    with suppress(aiohttp.ClientError):
        async with http.get(f"{url}/readyz") as answer:
            return answer.status
    return 0
