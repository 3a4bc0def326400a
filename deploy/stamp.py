"""Records what the environment was created from, so that setup does nothing when nothing has changed."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from deploy.backend import Backend
from deploy.commands import SetupFailed
from deploy.toolchain import Cpu

BACKEND, WHEELS = "FIRSTTOKEN_BACKEND", "FIRSTTOKEN_WHEELS"
AUTO = "auto"


@dataclass(frozen=True)
class Choices:
    """The user's choices about the build of llama.cpp. `wheels`: a folder or index of prebuilt wheels, or empty."""

    backend: Backend
    cmake_args: str = ""
    wheels: str = ""


@dataclass(frozen=True)
class Stamp:
    place: str  # an environment that was moved, or whose Python is gone, is unusable
    pyproject: str
    cpu: str
    backend: str
    cmake_args: str
    wheels: str
    dev: bool

    @classmethod
    def of(cls, root: Path, pyproject: str, cpu: Cpu, choices: Choices, *, dev: bool) -> Stamp:
        place = f"{root} Python {sys.version_info.major}.{sys.version_info.minor}"
        chosen = (str(choices.backend), choices.cmake_args, choices.wheels)
        return cls(place, _digest(pyproject), _digest(cpu.name), *chosen, dev)

    @classmethod
    def read(cls, path: Path) -> Stamp | None:
        """Read a stamp; None if there is none, or if another version of this module wrote it."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def choices_of(environment: Mapping[str, str], before: Stamp | None, *, best: Backend) -> Choices:
    """The choices that the environment variables make, or else the previous ones, or else the backend `best`.

    Without the previous ones, the next plain `make run` would undo `FIRSTTOKEN_BACKEND=cpu make setup`. Raises
    SetupFailed for an unknown backend.
    """
    named = environment.get(BACKEND) or (before.backend if before else AUTO)
    if named not in (AUTO, *Backend):
        raise SetupFailed(f"{BACKEND} must be {AUTO}, {', '.join(Backend)}, not {named!r}")
    return Choices(
        backend=best if named == AUTO else Backend(named),
        cmake_args=environment.get("CMAKE_ARGS", before.cmake_args if before else ""),
        wheels=environment.get(WHEELS, before.wheels if before else ""),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
