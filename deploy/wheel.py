"""Builds the llama-cpp-python wheel for this CPU, and caches it outside the environment.

There are several recipes because GCC 12 drops stores to the AMX tile configuration (dead-store elimination, llama.cpp
issue 20824), and such a build crashes at its first batch. Without that optimization the code is correct, and AMX makes
prefill three times as fast. A self-test decides: if it rejects a build, the next recipe uses fewer features.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deploy.backend import Backend
from deploy.commands import Log
from deploy.failure import SetupFailed
from deploy.progress import Progress, steps_in
from deploy.toolchain import Cpu

PACKAGE = "llama-cpp-python"
COMMON = ("-DLLAVA_BUILD=ON", "-DMTMD_VIDEO=OFF")  # the multimodal library, without video, for which it starts ffmpeg
KEEP_STORES = "-fno-tree-dse -fno-dse"
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


@dataclass(frozen=True)
class Recipe:
    """One way to build: its name for users, and its CMake arguments."""

    name: str
    cmake_args: tuple[str, ...]

    def with_extra(self, *more: str) -> Recipe:
        return Recipe(self.name, self.cmake_args + more)


def recipes(cpu: Cpu) -> list[Recipe]:
    """The recipes for this CPU, fastest first: each is the fallback if the self-test rejects the one before."""
    native = (*COMMON, "-DGGML_NATIVE=ON")
    portable = Recipe("portable", (*COMMON, "-DGGML_NATIVE=OFF"))
    if not cpu.has_amx:
        return [Recipe("native", native), portable]
    return [
        Recipe("native with AMX", native + _flags(KEEP_STORES)),
        Recipe("native without AMX", native + _flags(NO_AMX)),
        portable,
    ]


def pinned_version(pyproject: str) -> str:
    """The version of llama-cpp-python that pyproject.toml pins. Raises SetupFailed if it pins none."""
    pin = re.search(rf'"{PACKAGE}\s*==\s*([^"\s;]+)', pyproject)
    if pin is None:
        raise SetupFailed(f"pyproject.toml does not pin {PACKAGE} with ==")
    return pin[1]


def cache_key(version: str, recipe: Recipe, cpu: Cpu, compiler: str) -> str:
    """A key of everything that the machine code depends on. The Python version is left out: the wheel does not depend
    on Python's ABI."""
    facts = [version, *recipe.cmake_args, cpu.name, compiler]
    return f"{version}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}"


def cached_wheel(folder: Path) -> Path | None:
    return next(folder.glob("*.whl"), None)


def download_wheel(python: Path, version: str, source: str, folder: Path, log: Log) -> Path:
    """Download a prebuilt wheel. `source` is a folder or the URL of an index. Raises SetupFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    where = ["--index-url", source] if "://" in source else ["--no-index", "--find-links", source]
    pip = [str(python), "-m", "pip", "download", "--no-cache-dir", "--disable-pip-version-check", "--no-deps"]
    what = ["--only-binary", ":all:", *where, f"{PACKAGE}=={version}", "--dest", str(folder)]
    log.run([*pip, *what], f"there is no wheel of {PACKAGE} {version} for this machine at {source}")
    wheel = cached_wheel(folder)
    if wheel is None:
        raise SetupFailed(f"pip found no wheel of {PACKAGE} at {source}; the whole log: {log.path}")
    return wheel


def build_wheel(python: Path, version: str, recipe: Recipe, backend: Backend, folder: Path, log: Log) -> Path:
    """Compile from source into `folder`, which appears only when it is complete. Takes minutes and shows progress.
    Raises SetupFailed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        **backend.environment,
        "CMAKE_ARGS": shlex.join(recipe.cmake_args),
        # make, unlike ninja, compiles one file at a time unless told otherwise.
        "CMAKE_BUILD_PARALLEL_LEVEL": os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1)),
    }
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as scratch:
        # pip's own cache ignores CMake arguments: it would return the wheel that the self-test rejected.
        pip = [str(python), "-m", "pip", "wheel", "--verbose", "--no-cache-dir", "--disable-pip-version-check"]
        what = ["--no-deps", "--no-binary", PACKAGE, f"{PACKAGE}=={version}", "--wheel-dir", scratch]
        _compile([*pip, *what], environment, log, backend)
        wheel = cached_wheel(Path(scratch))
        if wheel is None:
            raise SetupFailed(f"pip built no wheel of {PACKAGE}; the whole log: {log.path}")
        new = Path(scratch) / "new"
        new.mkdir()
        wheel.rename(new / wheel.name)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    return folder / wheel.name


def _compile(command: list[str], environment: dict[str, str], log: Log, backend: Backend) -> None:
    device = "this CPU" if backend is Backend.CPU else f"this CPU and {backend}"
    progress: Progress | None = None
    try:
        for line in log.lines_of(command, "llama.cpp could not be compiled", environment):
            if (steps := steps_in(line)) is not None:
                progress = progress or Progress(f"compiling llama.cpp for {device}, once")
                progress.step(*steps)
    finally:
        if progress is not None:
            progress.close()


def _flags(flags: str) -> tuple[str, str]:
    return (f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}")
