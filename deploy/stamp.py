"""What the environment was made from, so that an unchanged one is left alone."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from deploy.toolchain import Cpu

CUDA = "FIRSTTOKEN_CUDA"


@dataclass(frozen=True)
class Choices:
    """What people may choose about the build of llama.cpp."""

    cuda: bool
    cmake_args: str


@dataclass(frozen=True)
class Stamp:
    place: str  # an environment that was moved, or whose Python is gone, is of no use
    pyproject: str
    cpu: str
    cuda: bool
    cmake_args: str
    dev: bool

    @classmethod
    def of(cls, root: Path, pyproject: str, cpu: Cpu, choices: Choices, *, dev: bool) -> Stamp:
        place = f"{root} Python {sys.version_info.major}.{sys.version_info.minor}"
        return cls(place, _digest(pyproject), _digest(cpu.name), choices.cuda, choices.cmake_args, dev)

    @classmethod
    def read(cls, path: Path) -> Stamp | None:
        """None when there is none, or one of another version of this file."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def choices_of(environment: Mapping[str, str], before: Stamp | None, *, gpu: bool) -> Choices:
    """What the environment variables say; where they say nothing, what was chosen before, and at first what `gpu` is.

    Otherwise `FIRSTTOKEN_CUDA=0 make setup` would be undone by the next plain `make run`.
    """
    cuda = environment.get(CUDA)
    return Choices(
        cuda=cuda not in ("", "0") if cuda is not None else before.cuda if before is not None else gpu,
        cmake_args=environment.get("CMAKE_ARGS", before.cmake_args if before else ""),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
