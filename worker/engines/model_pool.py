"""The models of models.toml that run in this process: which are loaded, and which one is evicted for another.

All of them share one memory limit. A model that is needed takes the place of the least recently used one that is idle;
if that is not enough, it runs with a shorter context or fewer streams.

A replacement is loaded beside the old model, so that requests find either of them. If there is no room for both,
requests wait until the old one has finished its responses and the new one is loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from inference.config import EngineConfig
from inference.errors import InferenceError, ModelAway, ModelNotLoaded, NoRoom
from inference.generation import Generation
from inference.llama import FileVersion, LlamaModel
from inference.model import ChatModel
from inference.provisioning.fit import Allowance, CannotServe, here
from inference.provisioning.memory import Proportions
from inference.trace import Trace
from worker.config import Config
from worker.engines.engine_config import engine_config, versions
from worker.engines.local_model import phases, while_wanted
from worker.engines.model_file import ModelTable
from worker.engines.on_demand import OnDemandModel
from worker.home import Home

# Prefixes shared by all tenants are prefilled before the first request; requests that wait for the model wait no
# longer.
BEGINNINGS_S = 10.0
# A model that was replaced: a request that had chosen it before begins to use it within milliseconds.
UNUSED_S = 2.0
LOOK_S = 0.1  # between two checks whether it is
PATIENCE_S = 120.0  # as long as most turns may take; a turn that holds two models at once must not wait forever

log = logging.getLogger("firsttoken.models")


@dataclass(frozen=True, slots=True)
class Loaded:
    """`needs` is in bytes and includes the conversations that it may park in host memory, but not the weights: models
    on one `file` share them."""

    model: OnDemandModel
    needs: int
    file: FileVersion


def taken(loaded: Iterable[Loaded]) -> int:
    """Bytes of all of them together. Pure."""
    held = list(loaded)
    return sum(each.needs for each in held) + sum(size for _, size, *_ in {each.file for each in held})


def leaving(loaded: Iterable[Loaded]) -> Loaded | None:
    """The model to evict: the least recently used of the idle ones. Pure."""
    return min((each for each in loaded if each.model.is_idle), key=lambda each: each.model.used_at, default=None)


def is_much_less(allowance: Allowance) -> bool:
    """Whether evicting another model is the better choice. It is not for the sake of a few conversations that leave the
    KV cache earlier: reloading the model takes seconds. Pure."""
    served, wanted = allowance.config, allowance.wanted
    return served.context < wanted.context or served.parallel < wanted.parallel


class ModelPool:
    """`report` is called with the name of a model and its progress, from the loading thread."""

    def __init__(self, config: Config, tables: Mapping[str, ModelTable], report: Callable[[str, float], None]) -> None:
        self._config = config
        self.tables = dict(tables)
        self._report = report
        self._loaded: dict[OnDemandModel, Loaded] = {}
        self._beside: set[OnDemandModel] = set()  # loaded while those that they replace still answer
        self._retiring: dict[str, asyncio.Task[None]] = {}  # by their previous name
        self._one_at_a_time = asyncio.Lock()  # two concurrent loads would both count on the same free memory
        self.models: dict[str, OnDemandModel] = {}
        self.starts: dict[str, Trace] = {}  # the newest load of each, by its phases
        self.unloads = 0

    def __repr__(self) -> str:
        return f"<ModelPool {len(self._loaded)} of {len(self.models)} loaded: {', '.join(self._names) or 'none'}>"

    @property
    def _names(self) -> list[str]:
        return [model.name for model in self._loaded]

    def prepare(self) -> None:
        """Read what the files contain besides the weights. Blocks for some milliseconds each. Raises ModelNotLoaded,
        InvalidTemplate."""
        for name, table in self.tables.items():
            self.models[name] = self.prepared(name, table)

    def prepared(self, name: str, table: ModelTable, beside: Iterable[OnDemandModel] = ()) -> OnDemandModel:
        """Of several models on one file, those `beside` it too, the first one's codec serves all. Raises as `prepare`
        does."""
        wanted, files = self._wanted(name, table), versions(table.applied(self._config))
        codecs = [model.codec for model in (*self.models.values(), *beside)]
        fits = [
            codec
            for codec in codecs
            if codec.source.file_version == files[0] and codec.context == wanted.context_of(codec.source.context_length)
        ]
        codec = next(iter(fits), None)
        weights = codec.source if codec else LlamaModel.load(wanted.model_path, weights=False)
        context, sees = wanted.context_of(weights.context_length), wanted.projector_path is not None
        open_ = partial(self._open, table, Proportions.of(weights))
        model = OnDemandModel(name, weights, context, open_, codec, sees=sees)
        model.adapters, model.files = wanted.adapters, files
        return model

    def is_current(self, name: str, table: ModelTable) -> bool:
        """Whether the model of this name is what its table says now, and made of the files that are there now. Raises
        ModelNotLoaded."""
        before = self.tables.get(name)
        if before is None or before.engine != table.engine:
            return False
        return self.models[name].files == versions(table.applied(self._config))

    async def start(self) -> None:
        """Load the models that should be loaded at start, in the order of the file. Raises InferenceError."""
        for name, table in self.tables.items():
            if table.load == "start":
                try:
                    await self.models[name].load()
                except ModelAway as error:
                    raise error.__cause__ or error from None

    async def load_beside(self, model: OnDemandModel) -> bool:
        """Whether it could be loaded while all others stay loaded. Raises InferenceError."""
        self._beside.add(model)
        try:
            await model.load()
        except NoRoom:
            return False
        finally:
            self._beside.discard(model)
        return True

    def replace(self, tables: Mapping[str, ModelTable], models: Mapping[str, OnDemandModel]) -> None:
        """Replace the models; those that are no longer among them are unloaded when their responses are finished."""
        for name, model in self.models.items():
            if models.get(name) is not model:
                self._retiring[name] = asyncio.create_task(self._retire(model, self._retiring.get(name)))
        self.tables, self.models = dict(tables), dict(models)

    async def discard(self, model: OnDemandModel) -> None:
        """Discard a model that will not serve after all."""
        self._loaded.pop(model, None)
        await model.close()

    async def close(self) -> None:
        for retiring in self._retiring.values():
            retiring.cancel()
        await asyncio.gather(*self._retiring.values(), return_exceptions=True)
        for model in self.models.values():
            await model.close()

    async def _retire(self, model: OnDemandModel, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await before
            while True:
                if model.is_unused and monotonic() - model.used_at >= UNUSED_S:
                    break
                await asyncio.sleep(LOOK_S)
            log.info("the previous version of model %s is unloaded: its answers are finished", model.name)
        finally:
            await self.discard(model)

    def _wanted(self, name: str, table: ModelTable) -> EngineConfig:
        """Raises ModelNotLoaded."""
        wanted = engine_config(table.applied(self._config))
        return replace(wanted, disk_folder=Home(self._config.home).kv_of(name))

    async def _open(self, table: ModelTable, proportions: Proportions, model: OnDemandModel) -> ChatModel:
        """The file is read again for nothing but its weights. Raises NoRoom; ModelNotLoaded, also if it has changed."""
        retiring = self._retiring.get(model.name)
        if retiring is not None and self.models.get(model.name) is model:
            await asyncio.wait([retiring], timeout=PATIENCE_S)
        async with self._one_at_a_time:
            self._loaded.pop(model, None)
            await asyncio.to_thread(self._check_files, model, table)
            trace = Trace(attributes={"model": model.name})
            with trace.span("room"):
                allowance = await self._make_room(model, table, proportions)
            with trace.span("weights"), while_wanted(partial(self._note_share, model)) as progress:
                opened = await asyncio.to_thread(ChatModel.load, allowance.config, progress, model.codec)
            opened.name = model.name
            try:
                with trace.span("first_step"):
                    await opened.start()
                with trace.span("prompts", count=len(model.beginnings)):
                    await self._read_beginnings(opened, model)
            except BaseException:
                await opened.close()
                raise
            need = allowance.need
            own = need.total + need.parked_max - need.weights
            self._loaded[model] = Loaded(model, own, model.files[0])
            trace.finish()
            self.starts[model.name] = trace
            log.info("the model %s is loaded in %.1f s: %s", model.name, trace.duration_ms / 1e3, phases(trace))
            return opened

    def _check_files(self, model: OnDemandModel, table: ModelTable) -> None:
        """What was tokenized, cached and learned with other contents is worthless. Raises ModelNotLoaded."""
        for file in versions(table.applied(self._config)):
            if file not in model.files:
                raise ModelNotLoaded(f"{file[0]} has changed since it was read: `firsttoken reload` puts it to use")

    async def _make_room(self, model: OnDemandModel, table: ModelTable, known: Proportions) -> Allowance:
        """The resources it gets, after others were evicted. Raises CannotServe, NoRoom."""
        while True:
            try:
                allowance = await asyncio.to_thread(here, self._within(model.name, table), known)
            except (CannotServe, ValueError) as error:
                if model in self._beside or not await self._unload_one():
                    if self._loaded:
                        raise NoRoom(
                            f"There is no memory for the model {model.name} while other models are in use: retry soon."
                        ) from error
                    raise
            else:
                if not is_much_less(allowance):
                    return allowance
                if model in self._beside:
                    raise NoRoom(f"There is no memory for the model {model.name} next to the one that it replaces.")
                if not await self._unload_one():
                    return allowance

    def _within(self, name: str, table: ModelTable) -> EngineConfig:
        """What the others leave of a configured memory limit; otherwise what is free now. Raises NoRoom."""
        wanted = self._wanted(name, table)
        if not wanted.memory_bytes_max:
            return wanted
        left = wanted.memory_bytes_max - taken(self._loaded.values())
        return replace(wanted, memory_bytes_max=max(1, left))

    async def _unload_one(self) -> bool:
        gives_way = leaving(self._loaded.values())
        if gives_way is None:
            return False
        del self._loaded[gives_way.model]
        self.unloads += 1
        log.info("the model %s is unloaded: another model needs its memory", gives_way.model.name)
        await gives_way.model.unload()
        return True

    def _note_share(self, model: OnDemandModel, share: float) -> None:
        model.share_loaded = share
        self._report(model.name, share)

    @staticmethod
    async def _read_beginnings(opened: ChatModel, model: OnDemandModel) -> None:
        until = monotonic() + BEGINNINGS_S
        for beginning in model.beginnings:
            opened.share(beginning)
            reading = opened.prefill_ahead(beginning)
            if reading is not None and (left_s := until - monotonic()) > 0:
                await _read(reading, left_s)


async def _read(reading: Generation, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            await reading.stream(lambda _: None)
    except (TimeoutError, InferenceError):
        reading.cancel()  # the first prompt with this prefix prefills it
