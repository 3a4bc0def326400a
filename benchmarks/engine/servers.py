"""Starts the sides as separate processes, with the same model, threads, slots and libraries.

llama-server is compiled from the source distribution of llama-cpp-python that this project pins, and runs on the
libraries of the installed wheel: both sides compute with the same machine code.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import aiohttp

from benchmarks.engine.target import Bare, Endpoint
from benchmarks.served import serve
from deploy.setup import ROOT, cache_folder
from deploy.toolchain import compiler_version, this_cpu
from deploy.wheel import PACKAGE, Recipe, cache_key, cached_wheel, including_headers, pinned_version, recipes
from inference.config import EngineConfig, default_threads
from inference.model import ChatModel

JOBS = 2
WITHOUT = ("TESTS", "EXAMPLES", "UI", "APP")


def compiled_llama_server() -> Path:
    """The path of llama-server, compiled at the first call, which takes minutes. Raises CalledProcessError; the
    compiler's output is in build.log.
    """
    cache = cache_folder()
    version = pinned_version((ROOT / "pyproject.toml").read_text("utf-8"))
    cpu, compiler = this_cpu(), compiler_version()
    keys = {cache_key(version, recipe, cpu, compiler): recipe for recipe in recipes(cpu)}
    # The build recipe that the set-up chose for this machine; its wheel is cached under the same key.
    key = next((key for key in keys if cached_wheel(cache / "wheels" / key)), next(iter(keys)))
    folder = cache / "llama-server" / key
    program = folder / "bin" / "llama-server"
    if not program.exists():
        print(f"compiling llama-server ({keys[key].name}), once", file=sys.stderr, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="firsttoken-peer-") as scratch:
            _build(_source(version, Path(scratch)), keys[key], folder)
    return program


def _source(version: str, folder: Path) -> Path:
    """Unpack llama.cpp from the source distribution."""
    what = ["--no-deps", "--no-binary", PACKAGE, f"{PACKAGE}=={version}", "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *what], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("*/vendor/llama.cpp"))


def _build(source: Path, recipe: Recipe, folder: Path) -> None:
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON", *recipe.cmake_args]
    options += [f"-DLLAMA_BUILD_{part}=OFF" for part in WITHOUT]
    options += ["-DLLAMA_OPENSSL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"]  # neither TLS nor its web page is measured
    gently = ["nice", "-n", "19", "cmake"]
    with (folder / "build.log").open("w") as log:
        for step in (
            ["-S", str(source), "-B", str(folder), *options],
            ["--build", str(folder), "--target", "llama-server", "--parallel", str(JOBS)],
        ):
            subprocess.run([*gently, *step], check=True, env=including_headers(), stdout=log, stderr=subprocess.STDOUT)


START_MAX_S = 120.0
OURS = "firsttoken"
TURNS = 128  # concurrent turns; all clients are one tenant here
SPECULATION = ("ngram-simple", "ngram-cache", "ngram-map-k")  # llama-server's drafts without a model
KEPT_SLOTS = EngineConfig().resident  # slots for idle conversations, always more than streams


@dataclass(frozen=True, slots=True)
class Setup:
    """The parameters that both sides share."""

    model: Path
    streams: int
    context: int  # tokens of a conversation
    draft: Path | None = None  # a draft model, for ours alone
    lookup: bool = False  # drafts by prompt lookup; llama-server has several kinds of its own, see `SPECULATION`
    gpu_layers: int = -1  # -1: all

    @property
    def threads(self) -> int:
        return default_threads()


@asynccontextmanager
async def firsttoken(setup: Setup, http: aiohttp.ClientSession, *more: str) -> AsyncIterator[Endpoint]:
    """Run the whole worker, with database, authentication and traces, as users do. `more`: further flags."""
    flags = {
        "model": setup.model,
        "streams": setup.streams,
        "resident": KEPT_SLOTS,
        "context": setup.context,
        "threads": setup.threads,
        "gpu-layers": setup.gpu_layers,
        "draft": "lookup" if setup.lookup else "none",
        "turns": 2 * TURNS,  # of which a tenant may have half
    }
    arguments = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-", ignore_cleanup_errors=True) as home:
        async with serve(Path(home), *arguments, "--docs", "", *more) as worker:
            yield Endpoint(OURS, worker.url, http, worker.headers)


@asynccontextmanager
async def bare(setup: Setup) -> AsyncIterator[Bare]:
    config = EngineConfig(
        model_path=setup.model,
        draft_path=setup.draft,
        lookup=setup.lookup,
        parallel=setup.streams,
        context=setup.context,
        threads=setup.threads,
        gpu_layers=setup.gpu_layers,
    )
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    try:
        yield Bare("engine", model)
    finally:
        await model.close()


@asynccontextmanager
async def llama_server(
    setup: Setup,
    http: aiohttp.ClientSession,
    *,
    slots: int,
    flash: bool,
    host_cache: bool = True,
    speculation: str = "",
) -> AsyncIterator[Endpoint]:
    """Run llama-server with its defaults, which are its best settings, except for flash attention, which makes it
    slower on some machines.

    `host_cache`: whether it keeps conversations in host memory after they lost their slot. `speculation`: one of
    `SPECULATION`.
    """
    program = await asyncio.to_thread(compiled_llama_server)
    port = _free_port()
    flash_attention = "on" if flash else "off"
    options: dict[str, object] = {
        "--model": setup.model,
        "--threads": setup.threads,
        "--threads-batch": setup.threads,
        "--parallel": slots,
        "--ctx-size": slots * setup.context,
        "--flash-attn": flash_attention,
        "--host": "127.0.0.1",
        "--port": port,
    }
    if not host_cache:
        options["--cache-ram"] = 0
    if speculation:
        options["--spec-type"] = speculation
    if not setup.gpu_layers:  # with a device, results of steps and large matrices would be offloaded all the same
        options["--device"] = "none"
    command = [str(program), "--no-webui", *(str(part) for option in options.items() for part in option)]
    name = f"-fa {flash_attention}{'' if host_cache else ' --cache-ram 0'}{speculation and f' {speculation}'}"
    endpoint = Endpoint(name, f"http://127.0.0.1:{port}", http)
    async with _running(command, _environment(program), endpoint, "/health"):
        yield endpoint


@asynccontextmanager
async def _running(
    command: Sequence[str], environment: Mapping[str, str], side: Endpoint, path: str
) -> AsyncIterator[None]:
    """Run a server until it answers at `path`, and stop it at the end. Raises RuntimeError if it does not start."""
    silent = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=silent, stderr=silent)
    try:
        await _ready(side, path, process)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _environment(program: Path) -> dict[str, str]:
    """An environment in which the installed wheel's libraries precede the program's own, so that both sides run the
    same machine code. How its threads wait is left to it."""
    spec = find_spec("llama_cpp")
    assert spec is not None and spec.origin is not None
    libraries = [Path(spec.origin).parent / "lib", program.parent]
    inherited = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    return {**inherited, "LD_LIBRARY_PATH": ":".join(map(str, libraries))}


async def _ready(endpoint: Endpoint, path: str, process: asyncio.subprocess.Process) -> None:
    for _ in range(int(START_MAX_S / 0.1)):
        if process.returncode is not None:
            break
        try:
            async with endpoint.http.get(endpoint.url + path) as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientConnectionError:
            pass
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the server {endpoint.name} did not start")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
