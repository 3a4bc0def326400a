"""The embedding models of a worker, by name: the default is loaded at start, the others on first use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from inference.bundled import EMBEDDER
from inference.embedding.embedder import Embedder, embed_something, pool_of, try_isolated
from inference.errors import EmbedderNotLoaded, EngineStopped, ModelNotLoaded, UnknownEmbedder
from inference.llama import FileVersion, LlamaModel, version_of

EMBEDDERS_MAX = 8  # each stays in memory once loaded: a tenth of a gigabyte or more

log = logging.getLogger("firsttoken.embedders")


@dataclass(frozen=True, slots=True)
class EmbedderFile:
    """What is known of an embedding model without its weights."""

    path: Path
    name: str
    dimensions: int
    version: FileVersion

    @classmethod
    def examine(cls, path: Path) -> EmbedderFile:
        """Takes milliseconds. Raises ModelNotLoaded, also for a model that cannot embed."""
        model = LlamaModel.load(path, weights=False)
        try:
            pool_of(model)
            return cls(path, model.name, model.dimensions, model.file_version)
        finally:
            model.close()

    @classmethod
    def tried(cls, path: Path) -> EmbedderFile:
        """Like `examine`, for a file that may be untrusted, which takes a second."""
        if path != EMBEDDER:
            try_isolated(path, embed_something, "embed")
        return cls.examine(path)

    def load(self) -> Embedder:
        """Raises ModelNotLoaded, also if the file has changed since it was examined."""
        if self.path.is_file() and version_of(self.path) != self.version:
            raise ModelNotLoaded(f"{self.path} has changed: restart the worker to use it")
        return Embedder.load(self.path)


class Embedders:
    """Used on one event loop. Create with `load`, which blocks for a second or two."""

    def __init__(self, default: Embedder, further: Sequence[EmbedderFile] = ()) -> None:
        """Raises ModelNotLoaded if there are too many, or two with the same name."""
        self.default = default
        self._here = {default.name: default}
        self._files = {file.name: file for file in further}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        names = [default.name, *(file.name for file in further)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ModelNotLoaded(f"two embedding models are named {twice}: rename one of their files")
        if len(names) > EMBEDDERS_MAX:
            raise ModelNotLoaded(f"too many embedding models: {len(names)}, at most {EMBEDDERS_MAX} are possible")

    @classmethod
    def load(cls, default: Path, further: Sequence[Path] = ()) -> Embedders:
        """Raises ModelNotLoaded, also for a file that is not needed yet: all are tried, in parallel."""
        with ThreadPoolExecutor(EMBEDDERS_MAX) as threads:
            first, *files = threads.map(EmbedderFile.tried, [default, *further])
        embedder = first.load()
        try:
            return cls(embedder, files)
        except ModelNotLoaded:
            embedder.close()
            raise

    async def close(self) -> None:
        """Waits for loads and batches in flight, then frees all models."""
        self._closed = True
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        for embedder in self._here.values():
            await asyncio.to_thread(embedder.close)

    @property
    def kept_bytes(self) -> int:
        """Size of the cached queries of all models."""
        return sum(embedder.kept_bytes for embedder in self._here.values())

    @property
    def names(self) -> list[str]:
        """The default first."""
        return [self.default.name, *self._files]

    @property
    def states(self) -> dict[str, str]:
        """State by model name: loaded, loading, or waiting for its first use."""
        return {name: self._state(name) for name in self.names}

    def dimensions(self, name: str) -> int:
        """Raises UnknownEmbedder."""
        known = self._here.get(name) or self._files.get(name)
        if known is None:
            raise UnknownEmbedder(name, self.names)
        return known.dimensions

    def knows(self, name: str, query: str, *, salt: str) -> bool:
        """Whether that model has the vectors of this query cached for the tenant."""
        return name in self._here and self._here[name].knows(query, salt=salt)

    async def get(self, name: str) -> Embedder:
        """Load it if needed, once for all callers; a cancelled caller does not affect the others.

        Raises UnknownEmbedder, EmbedderNotLoaded.
        """
        if name not in self._here:
            await asyncio.shield(self._load_once(name))
        return self._here[name]

    def prepare(self, name: str) -> None:
        """Start loading it, because it will be needed soon. Raises UnknownEmbedder."""
        if name not in self._here:
            self._load_once(name)

    def _load_once(self, name: str) -> asyncio.Task[None]:
        self.dimensions(name)
        if name not in self._loading:
            self._loading[name] = asyncio.create_task(self._load(self._files[name]), name=f"load {name}")
            self._loading[name].add_done_callback(lambda task: self._ended(name, task))
        return self._loading[name]

    async def _load(self, file: EmbedderFile) -> None:
        if self._closed:
            raise EngineStopped("the embedders are closed")
        try:
            self._here[file.name] = await asyncio.to_thread(file.load)
        except ModelNotLoaded as error:
            log.error("%s", error)
            raise EmbedderNotLoaded(file.name) from error

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        """The failure was logged, whether or not a caller still waits; the next call tries again."""
        del self._loading[name]
        if not task.cancelled():
            task.exception()

    def _state(self, name: str) -> str:
        if name in self._here:
            return "loaded"
        return "loading" if name in self._loading else "waiting"
