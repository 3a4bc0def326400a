"""The other side: llama-server, compiled from the source distribution of llama-cpp-python that this project pins.

It runs on the libraries of the installed wheel (see `servers`), so both sides compute with the same machine code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from deploy.setup import ROOT
from deploy.toolchain import compiler_version, this_cpu
from deploy.wheel import PACKAGE, Recipe, cache_key, cached_wheel, pinned_version, recipes

JOBS = 2
WITHOUT = ("TESTS", "EXAMPLES", "UI", "APP")


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firsttoken"


def llama_server(cache: Path) -> Path:
    """The path of llama-server, compiled at the first call, which takes minutes. Raises CalledProcessError; the
    compiler's output is in build.log.
    """
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
            subprocess.run([*gently, *step], check=True, stdout=log, stderr=subprocess.STDOUT)
