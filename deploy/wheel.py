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
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

from deploy.backend import Backend
from deploy.commands import Log, SetupFailed
from deploy.toolchain import Cpu

NINJA = re.compile(r"^\s*\[(\d+)/(\d+)\]")
MAKE = re.compile(r"^\s*\[\s*(\d+)%\]")
# Without a terminal (a CI log), one line per this many seconds is enough.
LOG_EVERY_S = 20.0


def steps_in(line: str) -> tuple[int, int] | None:
    """(done, total) in a line of ninja's `[57/140] ...` or make's `[ 40%] ...`; None in any other."""
    if ninja := NINJA.match(line):
        return int(ninja[1]), int(ninja[2])
    if make := MAKE.match(line):
        return int(make[1]), 100
    return None


def time_left(done: int, total: int, elapsed_s: float) -> str:
    """The estimated time left, in words; empty while it is too early for an estimate."""
    if done == 0 or elapsed_s < 5:
        return ""
    minutes = elapsed_s / done * (total - done) / 60
    return "less than a minute left" if minutes < 1 else f"about {minutes:.0f} min left"


class Progress:
    """A progress line: updated in place on a terminal, repeated occasionally in a log."""

    def __init__(self, title: str, stream: TextIO = sys.stdout) -> None:
        self._title = title
        self._stream = stream
        self._started_at = time.monotonic()
        self._shown_at = float("-inf")
        self._width = 0
        self._show(title)

    def step(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._stream.isatty() or now - self._shown_at >= LOG_EVERY_S or done == total:
            left = time_left(done, total, now - self._started_at)
            self._show(f"{self._title}: {done}/{total}" + (f", {left}" if left else ""))

    def close(self) -> None:
        elapsed_s = time.monotonic() - self._started_at
        self._show(f"{self._title}: {elapsed_s:.0f} s")
        if self._stream.isatty():
            self._stream.write("\n")

    def _show(self, text: str) -> None:
        self._shown_at = time.monotonic()
        if self._stream.isatty():
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


PACKAGE = "llama-cpp-python"
HEADERS = tuple(Path(__file__).with_name(f"ggml_{what}.h") for what in ("loops", "attention", "products", "decode"))
INCLUDE_HEADERS = " ".join(f"-include {header.name}" for header in HEADERS)  # no folder, so that clones share a wheel
# CMake includes it in llama.cpp's project. Its folder is named where it is compiled, for the same reason.
PROJECT_INCLUDE = Path(__file__).with_name("llama.cmake")
# The multimodal library, without video, for which it starts ffmpeg.
COMMON = ("-DLLAVA_BUILD=ON", "-DMTMD_VIDEO=OFF", f"-DCMAKE_CXX_FLAGS={INCLUDE_HEADERS}")
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
    texts = (file.read_text("utf-8") for file in (*HEADERS, PROJECT_INCLUDE))
    facts = [version, *recipe.cmake_args, *texts, cpu.name, compiler]
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
        **including_headers(backend.environment),
        "CMAKE_ARGS": shlex.join((f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={PROJECT_INCLUDE}", *recipe.cmake_args)),
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


def including_headers(more: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The environment in which a recipe compiles, since its flags name the headers without their folder."""
    environment = {**os.environ, **more}
    folders = filter(None, (str(HEADERS[0].parent), environment.get("CPLUS_INCLUDE_PATH")))
    return environment | {"CPLUS_INCLUDE_PATH": os.pathsep.join(folders)}


def _flags(flags: str) -> tuple[str, str]:
    return (f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags} {INCLUDE_HEADERS}")
