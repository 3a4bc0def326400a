"""The engines that serve this worker: one, or those of models.toml, in this process or in processes of their own."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

from agents.errors import AgentError
from agents.router import Candidate, ModelRegistry
from inference.errors import InferenceError
from inference.model import ChatModel
from inference.provisioning.catalogue import find
from inference.remote.remote_model import RemoteModel
from inference.trace import Trace
from worker.auth.secret import Secret
from worker.config import Config
from worker.engines.engine_config import found, load_for, read_token
from worker.engines.exchange import EngineTransport
from worker.engines.local_model import LoadedShare, open_model
from worker.engines.model_file import ModelFile, ModelTable, read_models
from worker.engines.model_pool import ModelPool
from worker.engines.on_demand import OnDemandModel, State
from worker.errors import StartError
from worker.home import Home
from worker.lifecycle.address import engines_in
from worker.lifecycle.supervisor import Supervisor
from worker.setting import ConfigError

Served: TypeAlias = ChatModel | RemoteModel | OnDemandModel
Check: TypeAlias = Callable[[ModelFile], None]  # raises StartError
Warm: TypeAlias = Callable[[Candidate], Awaitable[None]]
Reload: TypeAlias = Callable[[Check, Warm], Awaitable[list[str]]]

# Why a reload may fail. ConfigError: a table may conflict with the worker's own settings.
FORESEEN = (StartError, ConfigError, AgentError, InferenceError, OSError)

# Engine statistics that are summed over several engines; of others, the first engine's value is reported.
BUSY = ("running", "waiting")
SUMMED = ("waiting", "running", "ahead", "resident", "parallel", "engines", "engines_up")

log = logging.getLogger("firsttoken.models")


@dataclass(frozen=True)
class ActiveEngines:
    """`models` by name, those of a `model_registry`, and the file of each; `aliases` are further names that models.toml
    defines."""

    model_registry: ModelRegistry
    models: Mapping[str, Served]
    files: Mapping[str, Path]
    aliases: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[str, Trace] = field(default_factory=dict)  # the newest load of each, by its phases
    unloads: Callable[[], int] = int
    reload: Reload | None = None  # if there are several models

    @classmethod
    def of_one(cls, model: Served, path: Path, start: Trace) -> ActiveEngines:
        return cls(ModelRegistry.of(model), {model.name: model}, {model.name: path}, starts={model.name: start})

    @property
    def states(self) -> dict[str, State]:
        return {name: _state(model) for name, model in self.models.items()}

    @property
    def loading(self) -> float | None:
        """The progress of the models that are loading; None while none is."""
        shares = [_share(model) for model in self.models.values() if _state(model) == "loading"]
        return sum(shares) / len(shares) if shares else None

    def stats(self) -> dict[str, Any]:
        """Statistics of all engines, for health and metrics: sums, and from the first engine what cannot be summed.
        "failed" says why the default model cannot answer, "over" why this process should end."""
        all_stats = [stats for model in self.models.values() if (stats := model.stats())]
        first = all_stats[0] if all_stats else {}
        sums: Counter[str] = Counter()
        for stats in all_stats[1:]:
            sums.update({name: value for name, value in stats.items() if _is_summed(name, value)})
        best = self.models[self.model_registry.best(None).name]
        both = {name: first.get(name, 0) + value for name, value in sums.items()}
        told = {**first, **both, "failed": best.failed, "over": self.over()}
        if len(self.models) == 1:
            return told
        loaded = sum(state == "loaded" for state in self.states.values())
        return told | {"models": len(self.models), "models_loaded": loaded, "models_unloaded_total": self.unloads()}

    @property
    def each(self) -> Mapping[str, Mapping[str, Any]]:
        """Statistics of each model, if there are several; for one that is not loaded only that."""
        if len(self.models) == 1:
            return {}
        return {name: {"loaded": self.states[name] == "loaded", **each.stats()} for name, each in self.models.items()}

    def is_free(self) -> bool:
        """No request is queued or running, except prefills ahead."""
        stats = [model.stats() for model in self.models.values()]
        return not any(sum(each.get(name) or 0 for name in BUSY) > (each.get("ahead") or 0) for each in stats)

    def over(self) -> str | None:
        """Why this process should end: a failure that neither a request nor an engine elsewhere can repair."""
        here = [model for model in self.models.values() if not isinstance(model, RemoteModel)]
        return next((model.failed for model in here if model.failed), None)


def _state(model: Served) -> State:
    return model.state if isinstance(model, OnDemandModel) else "loaded"


def _share(model: Served) -> float:
    return model.share_loaded if isinstance(model, OnDemandModel) else 1.0


def _is_summed(name: str, value: object) -> bool:
    return isinstance(value, int | float) and (name in SUMMED or name.endswith(("_total", "_bytes")))


@asynccontextmanager
async def open_engines(
    config: Config, secret: Secret, supervisor: Supervisor, progress: LoadedShare
) -> AsyncIterator[ActiveEngines]:
    """Raises StartError, InvalidModels."""
    file = read_models(config)
    if file is not None:
        async with _open_several(config, file, secret, supervisor, progress) as engines:
            yield engines
        return
    path = await asyncio.to_thread(found, "--model", config.model, config)
    if config.engines is not None:
        async with open_remote(config, secret, supervisor) as remote:
            yield ActiveEngines(ModelRegistry.of(remote), {remote.name: remote}, {remote.name: path})
        return
    trace = Trace()
    async with open_model(config, supervisor, progress, trace) as model:
        yield ActiveEngines.of_one(model, path, trace)


@asynccontextmanager
async def _open_several(
    config: Config, file: ModelFile, secret: Secret, supervisor: Supervisor, progress: LoadedShare
) -> AsyncIterator[ActiveEngines]:
    elsewhere = file.elsewhere()
    here_ = {name: table for name, table in file.models.items() if name not in elsewhere}
    at_start = [name for name, table in here_.items() if table.load == "start"]

    def report(name: str, share: float) -> None:
        if name in at_start:
            progress((at_start.index(name) + share) / len(at_start))

    async with AsyncExitStack() as stack:
        pool = ModelPool(config, here_, report)
        stack.push_async_callback(pool.close)
        await asyncio.to_thread(load_for, "models.toml", pool.prepare)
        models: dict[str, Served] = dict(pool.models)
        for name, table in elsewhere.items():
            remote = await stack.enter_async_context(open_remote(table.applied(config), secret, supervisor))
            remote.name = name
            models[name] = remote
        try:
            await pool.start()
        except InferenceError as error:
            raise StartError(f"{error} (models.toml)") from error
        served = {name: models[name] for name in file.models}
        several = _Several(config, file, pool, _lineup(file, served), served)
        yield ActiveEngines(
            *(several.model_registry, served, files_of(file, config)),
            *(file.aliases, pool.starts, lambda: pool.unloads),
            reload=several.reload,
        )


def files_of(file: ModelFile, config: Config) -> dict[str, Path]:
    """The file of each model. Raises ModelNotLoaded."""
    folder = Home(config.home).models
    return {name: find(table.applied(config).model, folder) for name, table in file.models.items()}


def _lineup(file: ModelFile, models: Mapping[str, Served]) -> ModelRegistry:
    candidates = {name: _candidate(models[name], table, file.is_priced) for name, table in file.models.items()}
    return ModelRegistry(candidates, file.routes, file.default or "")


@dataclass
class _Several:
    """The models of models.toml, which can be reloaded. Others hold references to `served` and `model_registry`: both
    are changed in place."""

    config: Config
    file: ModelFile
    pool: ModelPool
    model_registry: ModelRegistry
    served: dict[str, Served]

    async def reload(self, check: Check, warm: Warm) -> list[str]:
        """Read the file again, load new models beside those that serve, prefill their prompts (`warm`), and switch
        over. Returns the names of new or changed models.

        Raises StartError, InvalidModels and InferenceError; then nothing has changed.
        """
        file = await asyncio.to_thread(read_models, self.config)
        if file is None:
            raise StartError("models.toml is gone: a worker with one model needs a restart")
        if file.elsewhere() != self.file.elsewhere():
            raise StartError("models of remote engines can only change with a restart")
        check(file)
        here_ = {name: table for name, table in file.models.items() if table.engines is None}
        changed = await asyncio.to_thread(self._changed, here_)
        fresh: dict[str, OnDemandModel] = {}
        try:
            for name in changed:
                beside = tuple(fresh.values())
                fresh[name] = await asyncio.to_thread(self.pool.prepared, name, here_[name], beside)
            offered = _lineup(file, {**self.served, **fresh})
            for name in changed:
                before = self.pool.models.get(name)
                is_wanted = here_[name].load == "start" or (before is not None and before.is_loaded)
                if is_wanted and await self.pool.load_beside(fresh[name]):
                    await warm(offered.candidates[name])
        except BaseException:
            for model in fresh.values():
                await self.pool.discard(model)
            raise
        self.pool.replace(here_, {name: fresh.get(name) or self.pool.models[name] for name in here_})
        others = {name: self.served[name] for name in file.elsewhere()}
        now: Mapping[str, Served] = {**self.pool.models, **others}
        self.served.clear()
        self.served.update({name: now[name] for name in file.models})
        for name, candidate in offered.candidates.items():
            if name not in changed:  # what was learned about it is still valid, and so are its cached answers
                known = self.model_registry.candidates[name]
                candidate.speed, candidate.version = known.speed, known.version
        self.model_registry.replace(offered)
        self.file = file
        return changed

    def _changed(self, tables: Mapping[str, ModelTable]) -> list[str]:
        """Those that are new, or whose settings or files are others. Raises ModelNotLoaded."""
        return [name for name, table in tables.items() if not self.pool.is_current(name, table)]


def _candidate(model: Served, table: ModelTable, is_priced: bool) -> Candidate:
    return Candidate(
        model,
        table.price.engine_second,
        {name: value for name, value in table.switches.items() if name in model.switches},
        model if isinstance(model, OnDemandModel) else None,
        is_priced,
    )


@asynccontextmanager
async def open_remote(config: Config, secret: Secret, supervisor: Supervisor) -> AsyncIterator[RemoteModel]:
    """The model of remote engines. They receive digests of tenants, keyed with the secret."""

    def digest(salt: str) -> str:
        return secret.cache_key("engine", salt).hex()

    def load(path: Path) -> RemoteModel:
        transport = EngineTransport(read_token(config))
        return RemoteModel.load(path, engines_in(config.engines or ""), transport, digest, config.context)

    path = await asyncio.to_thread(found, "--model", config.model, config)
    model = await asyncio.to_thread(load_for, "--model", load, path)
    watch = None
    try:
        await model.start()
        if model.failed:
            log.warning("no engine is reachable yet: turns are refused until one is")
        watch = supervisor.start("engines", model.watch)
        yield model
    finally:
        if watch is not None:
            await watch.stop()
        await model.close()


@dataclass(slots=True)
class Reloader:
    """`check` raises StartError if agents, surfaces or aliases refer to something that would be gone; `warm` prefills
    the prompts of agents on a model; `done` is called when the file is in effect. For the event loop only."""

    reload: Reload | None
    check: Check
    warm: Warm
    done: Callable[[], None]
    _running: asyncio.Task[None] | None = None
    _again: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self) -> None:
        """Request a reload; once more after one in progress, since the file may have changed meanwhile."""
        self._again.set()
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="reload")

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        while self._again.is_set():
            self._again.clear()
            began = monotonic()
            try:
                changed = await self._read()
            except Exception as error:  # top-level boundary: whatever failed is logged, and the next file is read
                trace = None if isinstance(error, FORESEEN) else error
                log.error("models.toml was not reloaded; all models stay as they are: %s", error, exc_info=trace)
            else:
                told = f"{', '.join(changed)} changed" if changed else "no model changed"
                log.warning("models.toml was reloaded in %.1f s: %s", monotonic() - began, told)

    async def _read(self) -> list[str]:
        if self.reload is None:
            raise StartError("this worker was started without one; restart it")
        changed = await self.reload(self.check, self.warm)
        self.done()
        return changed
