"""`firsttoken ingest`: files, folders and web pages into a vector store, with progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from retrieval.ingest import Progress, ingest
from retrieval.loaders.web import is_url
from retrieval.store import PassageStore
from worker.auth.keys import Keys
from worker.auth.secret import read_secret
from worker.cli.tenant import checked, tenant_of
from worker.config import Config
from worker.database import open_database
from worker.engines.engine_config import open_embedders
from worker.errors import StartError
from worker.home import Home

LINE_EVERY_S = 5.0  # without a terminal, which gets a bar
INGEST_NICENESS = 10  # a worker on the same machine serves people; the documents can wait


async def ingest_files(
    config: Config,
    *,
    paths: list[str],
    store: str,
    tenant: str,
    embedding_model: str | None,
    attributes: list[tuple[str, Any]] | None,
    allow_private: bool,
) -> None:
    home = Home(config.home)
    home.prepare()
    async with open_embedders(config) as embedders, open_database(config) as database:
        tenant_id = await tenant_of(Keys(database, read_secret(config, home)), tenant)
        os.nice(INGEST_NICENESS)
        with tqdm(unit=" passages", disable=None) as bar:
            lines = ProgressLines()

            def show(progress: Progress) -> None:
                bar.set_description(described(progress))
                bar.update(progress.chunks - bar.n)
                if bar.disable and (line := lines.due(progress)):
                    print(line, file=sys.stderr, flush=True)

            report = await ingest(
                [Path(path) for path in paths if not is_url(path)],
                urls=[path for path in paths if is_url(path)],
                allow_private=allow_private,
                attributes=dict(attributes) if attributes else None,
                store_name=checked(store, "the store's name"),
                tenant_id=tenant_id,
                store=PassageStore(database),
                embedders=embedders,
                embedding_model=embedding_model,
                progress=show,
            )
    for error in report.errors:
        print(f"{error.path}: {error.reason}", file=sys.stderr)
    print(
        f"store {store}: {_counted(report.written, 'file')} read in {report.seconds:.1f} s "
        f"({_counted(report.chunks, 'passage')}), {report.unchanged} unchanged, {report.removed} removed, "
        f"{_counted(report.skipped, 'unsupported file')} skipped"
    )
    if report.errors:
        raise StartError(f"{_counted(len(report.errors), 'file')} could not be read")


class ProgressLines:
    """Progress for a pipe or a file, where a bar cannot move: a line every few seconds. Files that are read faster than
    that have only the summary at the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_at = clock() + LINE_EVERY_S

    def due(self, progress: Progress) -> str | None:
        if self._clock() < self._due_at:
            return None
        self._due_at = self._clock() + LINE_EVERY_S
        return f"{described(progress)}, {_counted(progress.chunks, 'passage')} so far"


def described(progress: Progress) -> str:
    left = "" if progress.left_s is None else f", {tqdm.format_interval(progress.left_s)} left"
    return f"{progress.files_done} of {progress.files_total} files{left}"


def _counted(number: int, what: str) -> str:
    """1 file, 2 files."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
