"""The commands. Each gets the configuration and its own options, prints for people and raises errors for the CLI."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import asyncpg
from tqdm import tqdm

from agents.errors import AgentError
from inference.errors import InferenceError
from migrations.embedded import EmbeddedPostgresError
from migrations.pool import DATABASE_AWAY, UnsafeRole
from migrations.runner import MigrationError, migrate
from retrieval.errors import RetrievalError
from retrieval.ingest import Progress, ingest
from retrieval.loaders.web import is_url
from retrieval.store import PassageStore
from worker.auth.keys import Keys
from worker.auth.secret_file import read_secret
from worker.cli.cache_command import evaluate_cache
from worker.cli.canary_commands import abort_canary, promote_canary, show_canaries, start_canary
from worker.cli.cost_table import show_cost
from worker.cli.credentials import (
    create_key,
    drop_secret,
    list_keys,
    list_sessions,
    revoke_key,
    revoke_session,
    rotate_secret,
    show_audit,
    show_link,
    show_policies,
)
from worker.cli.doctor import doctor
from worker.cli.evaluate import evaluate_retrieval
from worker.cli.goodput_table import show_goodput
from worker.cli.grade_command import grade_canary
from worker.cli.kv_quality import compare_kv
from worker.cli.model_commands import list_models, pull_model, show_model
from worker.cli.quantize import quantize_model
from worker.cli.reload_command import reload_models
from worker.cli.route_command import evaluate_route
from worker.cli.stored_cases_command import export_answers, replay, write_cases
from worker.cli.suite_command import evaluate_suite
from worker.cli.tenant import checked, tenant_of
from worker.config import VERSION, Config
from worker.database import open_database, open_owner_dsn
from worker.errors import StartError
from worker.home import Home
from worker.serve import serve
from worker.serve_engine import serve_engine
from worker.start import open_embedders

__all__ = [
    "FAILURES",
    "abort_canary",
    "compare_kv",
    "create_key",
    "doctor",
    "drop_secret",
    "evaluate_cache",
    "evaluate_retrieval",
    "evaluate_route",
    "evaluate_suite",
    "export_answers",
    "grade_canary",
    "list_keys",
    "list_models",
    "list_sessions",
    "promote_canary",
    "pull_model",
    "quantize_model",
    "reload_models",
    "replay",
    "revoke_key",
    "revoke_session",
    "rotate_secret",
    "serve",
    "serve_engine",
    "show_audit",
    "show_canaries",
    "show_cost",
    "show_goodput",
    "show_link",
    "show_model",
    "show_policies",
    "start_canary",
    "write_cases",
]

# Errors that a person can act on; anything else is a bug and keeps its traceback.
FAILURES = (
    StartError,
    EmbeddedPostgresError,
    MigrationError,
    UnsafeRole,
    InferenceError,
    RetrievalError,
    AgentError,
    asyncpg.PostgresError,
    *DATABASE_AWAY,
)
INGEST_NICENESS = 10  # a worker on the same machine serves people; the documents can wait


async def show_version(config: Config) -> None:
    print(f"firsttoken {VERSION}")


async def migrate_database(config: Config) -> None:
    Home(config.home).prepare()
    async with open_owner_dsn(config) as (owner_dsn, _):
        applied = await migrate(owner_dsn)
    print("\n".join(f"applied {version}" for version in applied) or "the database is up to date")


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

            def show(progress: Progress) -> None:
                left = "" if progress.left_s is None else f", {tqdm.format_interval(progress.left_s)} left"
                bar.set_description(f"{progress.files_done} of {progress.files_total} files{left}")
                bar.update(progress.chunks - bar.n)

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


def _counted(number: int, what: str) -> str:
    """1 file, 2 files."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
