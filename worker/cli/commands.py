"""What the commands do. Each gets the configuration and its own options, prints for people and raises for the CLI."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import orjson
from pydantic import ValidationError
from tqdm import tqdm

from agents.definition import Bounds
from agents.errors import AgentError
from inference.errors import InferenceError
from migrations.embedded import EmbeddedPostgresError
from migrations.pool import UnsafeRole
from migrations.runner import MigrationError, migrate
from retrieval.errors import RetrievalError
from retrieval.ingest import Progress, ingest
from retrieval.loaders.web import is_url
from retrieval.store import PassageStore
from worker.auth.keys import LOCAL_TENANT, Keys
from worker.auth.principal import OPERATOR
from worker.auth.sign_in import link
from worker.cli.doctor import doctor
from worker.cli.evaluate import evaluate_retrieval
from worker.cli.model_commands import list_models, pull_model, show_model
from worker.cli.quantize import quantize_model
from worker.config import VERSION, Config
from worker.errors import StartError
from worker.home import Home
from worker.roster import list_agents
from worker.serve import serve
from worker.start import open_database, open_embedders, open_owner_dsn, read_secret

__all__ = [
    "FAILURES",
    "doctor",
    "evaluate_retrieval",
    "list_agents",
    "list_models",
    "pull_model",
    "quantize_model",
    "serve",
    "show_model",
]

# What a person can do something about; anything else is a bug and keeps its traceback.
FAILURES = (
    StartError,
    EmbeddedPostgresError,
    MigrationError,
    UnsafeRole,
    InferenceError,
    RetrievalError,
    AgentError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    OSError,
)
NAME_CHARS_MAX = 200
TIME_FORMAT = "%Y-%m-%d %H:%M"
INGEST_NICENESS = 10  # a worker beside it answers people; the documents can wait


async def show_version(config: Config) -> None:
    print(f"firsttoken {VERSION}")


async def migrate_database(config: Config) -> None:
    Home(config.home).prepare()
    async with open_owner_dsn(config) as (owner_dsn, _):
        applied = await migrate(owner_dsn)
    print("\n".join(f"applied {version}" for version in applied) or "nothing to do")


async def create_key(
    config: Config,
    *,
    name: str,
    tenant: str,
    operator: bool,
    days: int | None,
    budget: Sequence[tuple[str, int | float]],
) -> None:
    bounds = _bounds(budget)
    async with _open_keys(config) as keys:
        tenant_id = await _tenant(keys, tenant)
        expires_at = datetime.now(UTC) + timedelta(days=days) if days else None
        scopes = [OPERATOR] if operator else []
        name = _checked(name, "the key's name")
        id, key = await keys.create(tenant_id, name, scopes=scopes, expires_at=expires_at, bounds=bounds)
    print(f"{key}\n\n{id} of tenant {tenant}. Store it now: it is not shown again.")


async def list_keys(config: Config, *, tenant: str) -> None:
    async with _open_keys(config) as keys:
        found = await keys.list(await _known_tenant(keys, tenant))
    for key in found:
        used = key.last_used_at.strftime(TIME_FORMAT) if key.last_used_at else "never used"
        scopes = ",".join(sorted(key.scopes)) or "-"
        made = key.created_at.strftime(TIME_FORMAT)
        bounds = "".join(f"  {bound}={value:g}" for bound, value in key.bounds.items())
        print(f"{key.id}  {key.hint}…  {key.state:<8} {scopes:<9} made {made}  used {used:<16}  {key.name}{bounds}")
    if not found:
        print(f"tenant {tenant} has no keys")


async def revoke_key(config: Config, *, id: str, tenant: str) -> None:
    async with _open_keys(config) as keys:
        if not await keys.revoke(await _known_tenant(keys, tenant), id):
            raise StartError(f"tenant {tenant} has no key {id}: see `firsttoken keys list --tenant {tenant}`")
    print(f"{id} is revoked")


async def show_link(config: Config, *, url: str | None) -> None:
    address = url or _address_of_worker(config)
    async with _open_keys(config) as keys:
        token = await keys.create_link(await keys.tenant(LOCAL_TENANT), scopes=[OPERATOR])
    print(link(address.rstrip("/"), token))


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
        tenant_id = await _tenant(Keys(database, read_secret(config, home)), tenant)
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
                store_name=_checked(store, "the store's name"),
                tenant_id=tenant_id,
                store=PassageStore(database),
                embedders=embedders,
                embedding_model=embedding_model,
                progress=show,
            )
    for error in report.errors:
        print(f"{error.path} {error.reason}", file=sys.stderr)
    print(
        f"store {store}: {report.written} files read in {report.seconds:.1f} s ({report.chunks} passages), "
        f"{report.unchanged} unchanged, {report.removed} removed, {report.skipped} unsupported files skipped"
    )
    if report.errors:
        raise StartError(f"{len(report.errors)} files could not be read")


@asynccontextmanager
async def _open_keys(config: Config) -> AsyncIterator[Keys]:
    home = Home(config.home)
    home.prepare()
    async with open_database(config) as database:
        yield Keys(database, read_secret(config, home))


def _bounds(budget: Sequence[tuple[str, int | float]]) -> Bounds | None:
    try:
        return Bounds.model_validate(dict(budget)) if budget else None
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        known = ", ".join(Bounds.model_fields)
        raise StartError(f"--budget {problem['loc'][0]}: {problem['msg']}. Known budgets: {known}.") from None


async def _known_tenant(keys: Keys, name: str) -> UUID:
    """For commands that look: a name that was mistyped makes no tenant."""
    tenant_id = await keys.known_tenant(_checked(name, "the tenant's name"))
    if tenant_id is None:
        raise StartError(f"there is no tenant {name} (--tenant); a tenant is created with its first key or sign-in")
    return tenant_id


async def _tenant(keys: Keys, name: str) -> UUID:
    return await keys.tenant(_checked(name, "the tenant's name"))


def _checked(name: str, what: str) -> str:
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise StartError(f"{what} must have 1 to {NAME_CHARS_MAX} characters")
    return name


def _address_of_worker(config: Config) -> str:
    """Where the worker that started last in this home listens."""
    try:
        return str(orjson.loads(Home(config.home).ready_file.read_bytes())["url"])
    except (OSError, ValueError, KeyError):
        raise StartError(
            "no worker has started with this home folder: start one with `firsttoken serve`, "
            "or give its address with --url"
        ) from None
