"""`firsttoken serve --workers N`: workers on one port, the engine that they share (one for each model of models.toml
without `engines`), and the process that supervises them.

This process has no model, no database and no client connections, so what crashes the others does not crash it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from inference.llama import FileVersion
from inference.remote.transport import Transport
from worker.config import Config, settings
from worker.engines.engine_config import load_for, read_token, versions
from worker.engines.exchange import EngineTransport
from worker.engines.model_file import InvalidModels, ModelFile, ModelTable, read_models
from worker.engines.model_names import check_files
from worker.errors import StartError
from worker.home import Home, write_atomically
from worker.lifecycle.address import reserve
from worker.lifecycle.crew.child import Child
from worker.lifecycle.crew.member import socket_in
from worker.lifecycle.process import StopSignals, give_notice, say
from worker.lifecycle.ready_file import FIRST_START, Ready, check_folder, ready_files
from worker.lifecycle.supervisor import all_of, first_of

ENGINE, FILE = "engine", "models.toml"
NAME_CHARS_MAX = 24  # of a model in the name of its process: the path of a socket has 107 at most


@dataclass(frozen=True, slots=True)
class SharedEngine:
    """`process` is the name of the process, `address` where it listens, `flags` the settings of its table, `files` what
    it reads."""

    model: str
    process: str
    address: str
    flags: Mapping[str, str]
    files: tuple[FileVersion, ...]


@dataclass(slots=True)
class SharedModels:
    """The running engines, and how workers find them: by the file that they read instead of the operator's, or by the
    address of the only one. The model of that one has no name.
    """

    config: Config
    folder: Path
    engines: dict[str, SharedEngine] = field(default_factory=dict)  # by model
    _file: ModelFile | None = None
    _started: int = 0

    @classmethod
    def of(cls, config: Config, folder: Path) -> SharedModels:
        """Raises StartError."""
        models = cls(config, folder)
        models._file = models._read()
        return models

    @property
    def path(self) -> Path:
        return self.folder / FILE

    @property
    def of_workers(self) -> Mapping[str, str]:
        """The setting that leads workers to the engines."""
        if self._file is not None:
            return {"models": str(self.path)}
        return {"engines": self.config.engines or self.engines[""].address}

    def read(self) -> Sequence[SharedEngine]:
        """The engines to start for new or changed models. Nothing changes before `take`. Raises StartError."""
        file = self._read()
        if (file is None) is not (self._file is None):
            raise StartError("models.toml has come or gone: a crew with one model or several needs a restart")
        self._file = file
        return [engine for name, table in self._tables.items() if (engine := self._new(name, table))]

    def take(self, begun: Sequence[SharedEngine]) -> list[SharedEngine]:
        """Make workers that start from now on use what was read last, with these engines. Returns those that are no
        longer used. Raises OSError; then nothing has changed."""
        own = {name for name, table in self._tables.items() if table.engines is None}
        before = self.engines
        now = {name: engine for name, engine in before.items() if name in own}
        now.update({engine.model: engine for engine in begun})
        if self._file is not None:
            told = self._file.model_dump(mode="json", exclude_unset=True, exclude_none=True)
            for name, engine in now.items():
                told["models"][name]["engines"] = engine.address
            # Atomically: a worker that is restarting right now reads the old or the new file.
            write_atomically(self.path, tomli_w.dumps(told).encode())
        self.engines = now
        kept = set(map(id, now.values()))
        return [engine for engine in before.values() if id(engine) not in kept]

    def _read(self) -> ModelFile | None:
        try:
            return read_models(self.config)
        except InvalidModels as error:
            raise StartError(str(error)) from None

    @property
    def _tables(self) -> Mapping[str, ModelTable]:
        return self._file.models if self._file else {"": ModelTable(engines=self.config.engines)}

    def _new(self, name: str, table: ModelTable) -> SharedEngine | None:
        """None if the running one is the same, or the operator starts it."""
        if table.engines is not None:
            return None
        files = load_for("models.toml" if self._file else "--model", versions, table.applied(self.config))
        flags = {key: str(value) for key, value in table.engine.items()}
        running = self.engines.get(name)
        if running is not None and (running.flags, running.files) == (flags, files):
            return None
        self._started += 1
        number = str(self._started) if name or self._started > 1 else ""
        process = "-".join(filter(None, (ENGINE, number, name[:NAME_CHARS_MAX])))
        return SharedEngine(name, process, f"unix:{socket_in(self.folder, process)}", flags, files)


EMBEDDED_CONNECTIONS = 100  # of the embedded database, for all workers
# A worker exits within two seconds after its drain timeout, and the last one stops the database; then it is killed.
LEAVE_S = 15.0
# Settings of the crew that differ in each member.
OF_THE_WHOLE = frozenset({"workers", "engines", "host", "port", "listen", "ready_file"})

log = logging.getLogger("firsttoken.crew")


async def serve_crew(config: Config, *, began: float, flags: Mapping[str, str]) -> None:
    """Run until asked to stop. `flags` are the command-line settings as they were given; members inherit the
    environment.

    Raises StartError.
    """
    check_folder(config.ready_file)
    stop, home = StopSignals.by_signals(), Home(config.home)
    home.prepare()
    check_files(config)
    if home.is_new:
        say(FIRST_START)
    with (
        closing(reserve(config.host, config.port)) as reserved,
        tempfile.TemporaryDirectory(prefix="firsttoken-") as folder,
    ):
        crew = Crew(config, flags, reserved.getsockname()[1], Path(folder), EngineTransport(read_token(config)))
        try:
            introduction = await crew.start()
            stop.serving = True
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, crew.renew)
            ready = replace(introduction, pid=os.getpid())
            files = [path for path in (home.ready_file, config.ready_file) if path]
            with ready_files(files, ready):
                say(ready.banner(time.monotonic() - began, config.home, f" with {config.workers} workers"))
                await crew.serve_until(stop.asked)
            give_notice(config.drain_s)
        finally:
            await crew.stop(config.drain_s if stop.serving else 0.0, stop.hurried)


class Crew:
    """The members by name: `worker-1`, `worker-2`, ..., and `engine` unless engines run elsewhere; one engine per model
    where models.toml names several. Raises StartError."""

    def __init__(self, config: Config, flags: Mapping[str, str], port: int, folder: Path, transport: Transport) -> None:
        self._folder = folder
        self._introduction: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._drain_s = config.drain_s
        self._renewing: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        self._transport = transport
        self._models = SharedModels.of(config, folder)
        begun = self._models.read()
        self._models.take(begun)
        given = {name: text for name, text in flags.items() if name not in OF_THE_WHOLE}
        if not config.database_url:
            fair = EMBEDDED_CONNECTIONS // config.workers - 1  # and one that listens
            given["database_connections"] = str(min(config.database_connections, fair))
        own = {"host": config.host, "port": str(port)}
        of_engines = {each.name for each in settings() if each.is_for_engines}
        self._of_engine = {name: text for name, text in given.items() if name in of_engines - {"models"}}

        def of_workers() -> Mapping[str, str]:
            return {**given, **own, **self._models.of_workers}

        self.workers = [
            self._child(f"worker-{number}", "serve", of_workers, "/readyz") for number in range(1, config.workers + 1)
        ]
        self.engines = [self._engine(each, len(begun)) for each in begun]

    def _engine(self, engine: SharedEngine, count: int) -> Child:
        """One of this many engines, which share the memory limit."""
        settings = {**self._of_engine, **engine.flags, "listen": engine.address}
        if allowed := settings.get("memory_mb"):
            settings["memory_mb"] = str(max(1, int(allowed) // count))
        return self._child(engine.process, "engine", lambda: settings, "/health", engine.model or None)

    def _child(
        self, name: str, command: str, settings: Callable[[], Mapping[str, str]], path: str, model: str | None = None
    ) -> Child:
        def line(descriptor: int) -> Sequence[str]:
            flags = [f"--{setting.replace('_', '-')}={text}" for setting, text in settings().items()]
            return [*_this_program(), command, *flags, "--member", f"{name}:{descriptor}"]

        def hello() -> dict[str, Any]:
            socket_in(self._folder, name).unlink(missing_ok=True)  # of one that was killed
            is_first = name == self.workers[0].name
            introduces = is_first and not self._introduction.done()
            place = {"folder": str(self._folder), "introduces": introduces, "reads_samples": is_first}
            return {**place, "model": model}

        return Child(name, line, hello, self._hear, self._transport, f"unix:{socket_in(self._folder, name)}", path)

    def _hear(self, message: dict[str, Any]) -> None:
        if "ready" in message and not self._introduction.done():
            self._introduction.set_result(Ready(**message["ready"]))

    async def start(self) -> Ready:
        """Return when all are ready. Raises StartError if one of them cannot start."""
        first = self.engines if len(self.engines) > 1 else []
        for engine in first:  # one after the other: each sizes itself by the memory that is free then
            await engine.begin()
        await all_of(*(child.begin() for child in self._all if child not in first))
        return await self._introduction

    async def serve_until(self, stop: asyncio.Event) -> None:
        """Raises the error that ends a supervising task: none should end."""
        asked = asyncio.create_task(stop.wait(), name="stop")
        try:
            while not (asked.done() or any(child.is_lost for child in self._all)):
                await asyncio.wait({asked, *_kept(self._all)}, return_when=asyncio.FIRST_COMPLETED)
            for child in self._all:
                if child.is_lost and child.keeping:
                    child.keeping.result()
        finally:
            asked.cancel()

    def renew(self) -> None:
        """Restart all workers, one after the other, while the others take new requests, and begin engines for models
        that have changed. Requests in progress are finished first. If called again meanwhile, it starts over: with the
        file's new content a worker may start that could not before."""
        self._again.set()
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew(), name="renew")

    async def _renew(self) -> None:
        leaving: list[Child] = []
        while self._again.is_set():
            self._again.clear()
            try:
                leaving += await self._exchange_engines()
            except (StartError, OSError) as error:
                log.error("nothing was reloaded; all models stay as they are: %s", error)
                continue
            for worker in self.workers:
                log.warning("%s drains for its replacement", worker.name)
                if not await self._relieved(worker):
                    break
        for engine in leaving:
            await self._leave(engine)

    async def _relieved(self, worker: Child) -> bool:
        """Whether its successor is ready, and no further renewal was requested before."""
        relieving = asyncio.create_task(worker.relieve(2 * self._drain_s + LEAVE_S))  # it makes room, then drains
        await first_of(relieving, self._again.wait())
        return not self._again.is_set()

    async def _exchange_engines(self) -> list[Child]:
        """Start engines for models whose tables or files are new or others than before. Returns the old ones, which
        serve until the last worker that uses them has exited. Raises StartError, OSError; then nothing has changed."""
        begun: list[tuple[SharedEngine, Child]] = []
        try:
            wanted = self._models.read()
            for each in wanted:
                child = self._engine(each, len({*self._models.engines, *(engine.model for engine in wanted)}))
                begun.append((each, child))
                self.engines.append(child)
                await child.begin()
            left = self._models.take([each for each, _ in begun])
        except (StartError, OSError):
            for _, child in begun:
                await self._leave(child)
            raise
        gone = {engine.process for engine in left}
        return [child for child in self.engines if child.name in gone]

    async def _leave(self, engine: Child) -> None:
        """Stop an engine that is no longer used."""
        await _end([engine], LEAVE_S, asyncio.Event())
        self.engines.remove(engine)

    async def stop(self, drain_s: float, hurried: asyncio.Event) -> None:
        """Stop the workers first: the engine must serve until the last response is sent."""
        if self._renewing is not None:
            self._renewing.cancel()
        for members in (self.workers, self.engines):
            await _end(members, drain_s + LEAVE_S, hurried)

    @property
    def _all(self) -> Iterable[Child]:
        return (*self.engines, *self.workers)


def _kept(members: Iterable[Child]) -> list[asyncio.Task[None]]:
    """The tasks that still keep one of them."""
    return [child.keeping for child in members if child.keeping and not child.keeping.done()]


async def _end(members: Sequence[Child], within_s: float, hurried: asyncio.Event) -> None:
    """Return when all have exited: asked to, after `within_s` or when it is urgent once more, and killed at last."""
    for urgent, wait_s in ((hurried, within_s), (asyncio.Event(), LEAVE_S)):
        for child in members:
            child.ask()
        if tasks := _kept(members):
            await first_of(asyncio.wait(tasks), urgent.wait(), within_s=wait_s)
    for child in members:
        child.kill()
    await asyncio.gather(*(child.keeping for child in members if child.keeping), return_exceptions=True)


def _this_program() -> Sequence[str]:
    """The command line of this process, up to the subcommand."""
    return sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
