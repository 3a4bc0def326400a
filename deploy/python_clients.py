"""The Python client packages that the tests use. Their dependencies conflict with each other and are more than a clone
should install, so each client gets a folder of its own. `python -m deploy.clients` installs all of them.

For each client, `tests/clients/python` has its requirements in `NAME.in` and a lock file with all hashes in `NAME.txt`,
created by `uv pip compile --universal --generate-hashes`. Packages are kept in the user's cache folder. A client runs
on the same Python but without the packages of this environment: `python -S` with its folder as PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.commands import Log
from deploy.setup import ROOT, alone, cache_folder

FOLDER = ROOT / "tests" / "clients" / "python"
CLIENTS = tuple(sorted(lock.stem for lock in FOLDER.glob("*.txt")))
# pip checks the hash of each file against the lock file, which lists every package that is installed. Nothing is built.
INSTALL = ("install", "--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:", "--no-compile")


def packages_of(client: str, folder: Path = FOLDER, cache: Path | None = None) -> Path:
    """The folder with the packages that the client's lock file pins. Returns at once if they are there already.

    Raises SetupFailed, saying which packages could not be installed.
    """
    lock = folder / f"{client}.txt"
    # Wheels are specific to a version of Python.
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:16]
    kept = (cache or cache_folder() / "clients") / f"{client}-{digest}"
    if not kept.exists():
        with alone(kept.parent):
            if not kept.exists():
                _download(lock, kept)
    return kept


def _download(lock: Path, kept: Path) -> None:
    print(f"installing the Python packages of {lock.stem} for the tests", file=sys.stderr, flush=True)
    with TemporaryDirectory(dir=kept.parent) as scratch:
        made = Path(scratch) / "made"
        failure = f"The packages of {lock.stem} could not be installed (is the Python package index reachable?)"
        command = [sys.executable, "-m", "pip", *INSTALL, f"--target={made}", f"--requirement={lock}"]
        Log(kept.parent / f"pip-{lock.stem}.log").run(command, failure)
        shutil.rmtree(kept, ignore_errors=True)
        made.rename(kept)
