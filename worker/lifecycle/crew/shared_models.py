"""models.toml of a crew: an engine in a process of its own for each model without `engines`, which all workers
share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from worker.config import Config
from worker.engines.model_file import InvalidModels, ModelFile, ModelTable, read_models
from worker.errors import StartError
from worker.home import write_atomically
from worker.lifecycle.crew.member import socket_in

FILE = "models.toml"
NAME_CHARS_MAX = 24  # of a model in the name of its process: the path of a socket has 107 at most


@dataclass(frozen=True, slots=True)
class SharedEngine:
    """`process` is the name of the process, `address` where it listens, `flags` the settings of its table."""

    model: str
    process: str
    address: str
    flags: Mapping[str, str]


@dataclass(slots=True)
class SharedModels:
    """The running engines, and the file that workers read instead of the operator's: it contains the engines'
    addresses.
    """

    config: Config
    folder: Path
    engines: dict[str, SharedEngine] = field(default_factory=dict)  # by model
    _file: ModelFile | None = None
    _started: int = 0

    @classmethod
    def of(cls, config: Config, folder: Path) -> SharedModels | None:
        """None if there is only one model. Raises StartError."""
        models = cls(config, folder)
        return models if models._read() is not None else None

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def read(self) -> Sequence[SharedEngine]:
        """The engines to start for new or changed models. Nothing changes before `take`. Raises StartError."""
        file = self._read()
        if file is None:
            raise StartError("models.toml is gone: a crew with one model needs a restart")
        return [self._engine(name, table) for name, table in file.models.items() if self._is_new(name, table)]

    def take(self, begun: Sequence[SharedEngine]) -> list[SharedEngine]:
        """Make workers that start from now on use what was read last, with these engines. Returns those that are no
        longer used. Raises OSError; then nothing has changed."""
        assert self._file is not None
        own = {name for name, table in self._file.models.items() if table.engines is None}
        before = self.engines
        now = {name: engine for name, engine in before.items() if name in own}
        now.update({engine.model: engine for engine in begun})
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
            self._file = read_models(self.config)
        except InvalidModels as error:
            raise StartError(str(error)) from None
        return self._file

    def _is_new(self, name: str, table: ModelTable) -> bool:
        running = self.engines.get(name)
        return table.engines is None and (running is None or running.flags != _flags(table))

    def _engine(self, name: str, table: ModelTable) -> SharedEngine:
        self._started += 1
        process = f"engine-{self._started}-{name[:NAME_CHARS_MAX]}"
        return SharedEngine(name, process, f"unix:{socket_in(self.folder, process)}", _flags(table))


def _flags(table: ModelTable) -> dict[str, str]:
    return {name: str(value) for name, value in table.engine.items()}
