"""Makes .venv and everything in it: `make setup`, or `python3 -m deploy.setup`.

Needs Python 3.11 or newer, a C++ compiler and cmake; uses nothing but the standard library. llama.cpp is compiled for
this CPU once; the wheel is kept in the user's cache folder, so a second clone does not compile. A second run in the
same clone is over at once. Where there is an NVIDIA GPU and its compiler, llama.cpp is built for it: FIRSTTOKEN_CUDA=0
builds for the CPU all the same, 1 insists on the GPU. CMAKE_ARGS adds to the build's own arguments.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shlex
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from deploy.commands import Log
from deploy.failure import SetupFailed
from deploy.stamp import CUDA, Choices, Stamp, choices_of
from deploy.toolchain import Cpu, compiler_version, cuda_compiler, cuda_version, has_nvidia_gpu, this_cpu
from deploy.wheel import Recipe, build_wheel, cache_key, cached_wheel, pinned_version, recipes

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
PYTHON_MIN = (3, 11)
SELF_TEST_TIMEOUT_S = 300.0  # seconds on anything; a machine that swaps may need longer


def main() -> int:
    arguments = _parse(sys.argv[1:])
    try:
        _check_python()
        with alone(cache_folder()):
            _set_up(dev=arguments.dev, force=arguments.force)
    except SetupFailed as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _set_up(*, dev: bool, force: bool) -> None:
    path = ENVIRONMENT / "setup.json"
    before = None if force else Stamp.read(path)
    choices = choices_of(os.environ, before, gpu=has_nvidia_gpu() and cuda_compiler() is not None)
    cpu = this_cpu()
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    stamp = Stamp.of(ROOT, pyproject, cpu, choices, dev=dev or (before is not None and before.dev))
    if PYTHON.exists() and before == stamp:
        return
    moved = before is not None and before.place != stamp.place
    if before is None or moved or not PYTHON.exists():
        _make_environment(anew=moved)
    log = Log(ENVIRONMENT / "setup.log")
    version = pinned_version(pyproject)
    try:
        _install_working_wheel(version, cpu, choices, log, dev=stamp.dev)
    except SetupFailed as error:
        if not choices.cuda or CUDA in os.environ:
            raise
        print(f"{error}\nThere is no build for the GPU: building for the CPU instead", flush=True)
        stamp = replace(stamp, cuda=False)
        _install_working_wheel(version, cpu, replace(choices, cuda=False), log, dev=stamp.dev)
    stamp.write(path)


def _install_working_wheel(version: str, cpu: Cpu, choices: Choices, log: Log, *, dev: bool) -> None:
    """Try the recipes in order until the self-test passes."""
    candidates = [recipe.with_extra(*_extra_arguments(choices)) for recipe in recipes(cpu)]
    for recipe in candidates:
        _install(wheel_of(version, recipe, cpu, choices, log), log, dev=dev)
        refusal, printed = _self_test()
        if refusal is None:
            print(praise(recipe.name, printed, cuda=choices.cuda), flush=True)
            return
        print(f"the {recipe.name} build of llama.cpp fails its self-test here ({refusal})", flush=True)
    raise SetupFailed(
        "No build of llama.cpp works on this machine: see `.venv/bin/python -m inference.provisioning.selftest`."
    )


def wheel_of(version: str, recipe: Recipe, cpu: Cpu, choices: Choices, log: Log) -> Path:
    compiler = compiler_version() + (f" / {cuda_version()}" if choices.cuda else "")
    folder = cache_folder() / "wheels" / cache_key(version, recipe, cpu, compiler)
    if (wheel := cached_wheel(folder)) is not None:
        return wheel
    if has_nvidia_gpu() and not choices.cuda:
        print("an NVIDIA GPU is here: with the CUDA toolkit, `FIRSTTOKEN_CUDA=1 make setup` builds for it", flush=True)
    print(f"fetching the source of llama-cpp-python {version} (80 MB)", flush=True)
    return build_wheel(PYTHON, version, recipe, folder, log)


def _install(wheel: Path, log: Log, *, dev: bool) -> None:
    print("installing the dependencies", flush=True)
    pip = [
        str(PYTHON),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--root-user-action",
        "ignore",
    ]
    failure = "The dependencies could not be installed (is the package index reachable?)"
    log.run([*pip, "--force-reinstall", "--no-deps", str(wheel)], failure)
    log.run([*pip, "--editable", f"{ROOT}[dev]" if dev else str(ROOT)], failure)


def _self_test() -> tuple[str | None, str]:
    """Run in a process of its own, because a bad build kills it. Returns why it was refused, and what it printed."""
    try:
        done = subprocess.run(
            [PYTHON, "-m", "inference.provisioning.selftest"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SELF_TEST_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no end after {SELF_TEST_TIMEOUT_S:.0f} s", ""
    return verdict(done.returncode, done.stderr), done.stdout.strip()


def praise(recipe: str, printed: str, *, cuda: bool) -> str:
    """What is said of a build that passed; `printed` ends with the device that the self-test computed on."""
    if cuda and "on the GPU" not in printed:
        return (
            f"llama.cpp works here, but not on a GPU: the {recipe} build is one for the GPU, and no device was found "
            f"({printed}). See whether `nvidia-smi` lists one; FIRSTTOKEN_CUDA=0 make setup builds for the CPU"
        )
    return f"llama.cpp works here: the {recipe} build passed its self-test ({printed})"


def verdict(status: int, errors: str) -> str | None:
    """Why a build is refused: it crashed, or computed nonsense. Any other failure is not the build's: SetupFailed."""
    last_line = (errors.strip().splitlines() or [""])[-1]
    if status == 0:
        return None
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if last_line.startswith("AssertionError"):
        return last_line
    raise SetupFailed(f"The self-test could not run: {last_line}")


def _make_environment(*, anew: bool) -> None:
    """Also completes one that was interrupted."""
    print(f"making {ENVIRONMENT}", flush=True)
    try:
        venv.create(ENVIRONMENT, clear=anew, with_pip=True, symlinks=True)
    except (subprocess.CalledProcessError, ImportError):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupFailed(
            f"Python {version} has no working venv module (Debian, Ubuntu: apt-get install python{version}-venv)"
        ) from None


def _extra_arguments(choices: Choices) -> list[str]:
    return ["-DGGML_CUDA=ON"] * choices.cuda + shlex.split(choices.cmake_args)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firsttoken"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One setup at a time for the user, so that two clones do not compile the same wheel side by side."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another setup to finish", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_python() -> None:
    if sys.version_info < PYTHON_MIN:
        raise SetupFailed(
            f"Python {'.'.join(map(str, PYTHON_MIN))} or newer is needed, this is {sys.version.split()[0]}: "
            "install one and name it, as in `make PYTHON=python3.12 run`"
        )


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m deploy.setup", description=__doc__)
    parser.add_argument("--dev", action="store_true", help="install what the tests need as well")
    parser.add_argument("--force", action="store_true", help="do everything again (a cached wheel is still used)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
