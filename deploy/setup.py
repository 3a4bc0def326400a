"""Creates .venv and installs everything into it: `make setup`, or `python3 -m deploy.setup`.

Needs Python 3.11 or newer, a C++ compiler and cmake; uses only the standard library. llama.cpp is compiled once for
this CPU; the wheel is kept in the user's cache folder, so a second clone does not compile. A second run in the same
clone returns at once. If there is a GPU and a compiler for it, llama.cpp is built for CUDA (NVIDIA), Metal (Apple) or
Vulkan (AMD, Intel and others). FIRSTTOKEN_BACKEND=cuda, metal, vulkan or cpu forces one; auto chooses again.
FIRSTTOKEN_WHEELS names a folder or a package index with prebuilt wheels, which are tried before compiling. CMAKE_ARGS
adds to the arguments of the build.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from deploy.backend import Backend, advice, possible
from deploy.commands import Log, SetupFailed
from deploy.toolchain import Cpu, compiler_version, this_cpu
from deploy.wheel import PACKAGE, Recipe, build_wheel, cache_key, cached_wheel, download_wheel, pinned_version, recipes
from inference.provisioning.gpus import gpus

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
    """What the environment was created from: a second setup does nothing if nothing has changed."""

    place: str  # an environment that was moved, or whose Python is gone, is unusable
    pyproject: str
    cpu: str  # and how llama.cpp is compiled for it
    backend: str
    cmake_args: str
    wheels: str
    dev: bool

    @classmethod
    def of(cls, root: Path, pyproject: str, cpu: Cpu, choices: Choices, *, dev: bool) -> Stamp:
        place = f"{root} Python {sys.version_info.major}.{sys.version_info.minor}"
        chosen = (str(choices.backend), choices.cmake_args, choices.wheels)
        compiled = " ".join(cache_key("", recipe, cpu, "") for recipe in recipes(cpu))
        return cls(place, _digest(pyproject), _digest(compiled), *chosen, dev)

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
    return sha256(text.encode()).hexdigest()[:16]


ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
PIP_INSTALL = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--root-user-action=ignore"]
PREBUILT = "prebuilt"  # the name of a wheel that was not compiled here
# The command that lists a backend's devices, for a user whose device was not found.
LISTS = {
    Backend.CUDA: "nvidia-smi",
    Backend.METAL: "system_profiler SPDisplaysDataType",
    Backend.VULKAN: "vulkaninfo --summary",
}
UNREACHABLE = "The dependencies could not be installed (is the package index reachable?)"
SELF_TEST_TIMEOUT_S = 300.0  # it takes seconds on any machine; one that swaps may need longer


def main() -> int:
    arguments = _parse(sys.argv[1:])
    try:
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
    vendors = gpus()
    choices = choices_of(os.environ, before, best=possible(vendors)[0])
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
    insisted = os.environ.get(BACKEND, AUTO) not in ("", AUTO)
    with _installing(dependencies(pyproject, dev=stamp.dev)) as installed:
        for backend in [choices.backend] if insisted else _from(choices.backend, possible(vendors)):
            try:
                chosen = replace(choices, backend=backend)
                _install_working_wheel(version, cpu, chosen, log, installed, insisted=insisted)
                break
            except SetupFailed as error:
                if insisted or backend is Backend.CPU:
                    raise
                print(f"{error}\nno build for {backend} works on this machine: trying the next backend", flush=True)
    for line in () if insisted else advice(vendors, backend):
        print(line, flush=True)
    replace(stamp, backend=str(backend)).write(path)


def _from(chosen: Backend, found: list[Backend]) -> list[Backend]:
    """The backends to try: the chosen one, then the slower ones, the CPU last. A backend that worked before may have
    lost its compiler."""
    return [chosen, *(backend for backend in found if list(Backend).index(backend) > list(Backend).index(chosen))]


def _install_working_wheel(
    version: str, cpu: Cpu, choices: Choices, log: Log, installed: Callable[[], None], *, insisted: bool = True
) -> None:
    """Try prebuilt wheels, then the recipes in order, until the self-test passes. `installed` waits for the
    dependencies. Raises SetupFailed if none passes, or if a build for a GPU finds no GPU, unless the user insisted on
    that backend."""
    for name, fetch in _candidates(version, cpu, choices, log):
        try:
            wheel = fetch()
        except SetupFailed as error:
            if name != PREBUILT:
                raise
            print(f"{error}; compiling", flush=True)
            continue
        installed()
        print("installing llama.cpp and the project", flush=True)
        _install(wheel, log)
        refusal, printed = _self_test()
        if refusal is not None:
            print(f"the {name} build of llama.cpp fails its self-test on this machine ({refusal})", flush=True)
            continue
        message = success(name, printed, choices.backend)
        if not (insisted or computes_on(choices.backend, printed)):
            raise SetupFailed(message)
        print(message, flush=True)
        return
    raise SetupFailed(
        "No build of llama.cpp works on this machine: see `.venv/bin/python -m inference.provisioning.selftest`."
    )


def _candidates(version: str, cpu: Cpu, choices: Choices, log: Log) -> Iterator[tuple[str, Callable[[], Path]]]:
    if source := choices.wheels:
        place = (
            cache_folder() / "wheels" / f"{version}-{sha256(f'{source} {choices.backend}'.encode()).hexdigest()[:16]}"
        )
        yield PREBUILT, lambda: cached_wheel(place) or download_wheel(PYTHON, version, source, place, log)
    for recipe in recipes(cpu):
        yield recipe.name, partial(wheel_of, version, recipe, cpu, choices, log)


def wheel_of(version: str, recipe: Recipe, cpu: Cpu, choices: Choices, log: Log) -> Path:
    """The wheel for the chosen backend and arguments, compiled on first use. Raises SetupFailed."""
    backend = choices.backend
    recipe = recipe.with_extra(*backend.cmake_args, *shlex.split(choices.cmake_args))
    compiler = " / ".join(filter(None, (compiler_version(), backend.compiler)))
    folder = cache_folder() / "wheels" / cache_key(version, recipe, cpu, compiler)
    if (wheel := cached_wheel(folder)) is not None:
        return wheel
    print(f"downloading the source of llama-cpp-python {version} (80 MB)", flush=True)
    return build_wheel(PYTHON, version, recipe, backend, folder, log)


def dependencies(pyproject: str, *, dev: bool) -> list[str]:
    """The requirements that pip installs as they are, which are all but llama-cpp-python, and what the project itself
    is built with."""
    declared = tomllib.loads(pyproject)
    project, tools = declared["project"], declared["build-system"]["requires"]
    named = [*project["dependencies"], *project["optional-dependencies"]["dev"] * dev, *tools]
    return [requirement for requirement in named if not requirement.startswith(PACKAGE)]


@contextmanager
def _installing(requirements: list[str]) -> Iterator[Callable[[], None]]:
    """Install the requirements meanwhile: pip mostly waits for the network and computes on one core. What is yielded
    waits for them, and raises SetupFailed."""
    print("installing the dependencies", flush=True)
    with Log(ENVIRONMENT / "dependencies.log").running([*PIP_INSTALL, *requirements], UNREACHABLE) as installed:
        yield installed


def _install(wheel: Path, log: Log) -> None:
    """Install this build, what else it needs, and the project, with the setuptools that are there: in isolation, pip
    would download them again."""
    log.run([*PIP_INSTALL, "--force-reinstall", "--no-deps", str(wheel)], UNREACHABLE)
    log.run([*PIP_INSTALL, "--no-build-isolation", "--editable", str(ROOT)], UNREACHABLE)


def _self_test() -> tuple[str | None, str]:
    """Run the self-test in a process of its own, because a bad build crashes it. Returns the reason to reject the
    build, or None, and the output."""
    try:
        done = subprocess.run(
            [PYTHON, "-m", "inference.provisioning.selftest"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SELF_TEST_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"not finished after {SELF_TEST_TIMEOUT_S:.0f} s", ""
    return verdict(done.returncode, done.stderr), done.stdout.strip()


def success(name: str, printed: str, backend: Backend) -> str:
    """The message about a build that passed its self-test; `printed` ends with the device it computed on."""
    if not computes_on(backend, printed):
        return (
            f"llama.cpp works here, but not on a GPU: the {name} build is for {backend}, and no device was found "
            f"({printed}). Check whether `{LISTS[backend]}` lists one; "
            "FIRSTTOKEN_BACKEND=cpu make setup builds for the CPU"
        )
    return f"llama.cpp works here: the {name} build passed its self-test ({printed})"


def computes_on(backend: Backend, printed: str) -> bool:
    return backend is Backend.CPU or "on the GPU" in printed


def verdict(status: int, errors: str) -> str | None:
    """Why to reject a build: it crashed, or computed nonsense. None if it passed. Raises SetupFailed for any other
    failure, which is not the build's."""
    last_line = (errors.strip().splitlines() or [""])[-1]
    if status == 0:
        return None
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if last_line.startswith("AssertionError"):
        return last_line
    raise SetupFailed(f"The self-test could not run: {last_line}")


def _make_environment(*, anew: bool) -> None:
    """Create the environment, or complete one whose creation was interrupted. `anew`: replace an existing one."""
    print(f"creating {ENVIRONMENT}", flush=True)
    try:
        venv.create(ENVIRONMENT, clear=anew, with_pip=True, symlinks=True)
    except (subprocess.CalledProcessError, ImportError):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupFailed(
            f"Python {version} has no working venv module (Debian, Ubuntu: apt-get install python{version}-venv)"
        ) from None


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firsttoken"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a lock in `folder`: one setup at a time per user, so that two clones do not compile the same wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another setup to finish", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m deploy.setup", description=__doc__)
    parser.add_argument("--dev", action="store_true", help="also install what the tests need")
    parser.add_argument("--force", action="store_true", help="repeat the whole setup (a cached wheel is still used)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
