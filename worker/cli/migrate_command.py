"""`firsttoken migrate`: the migrations of the database."""

from __future__ import annotations

from migrations.runner import migrate
from worker.config import Config
from worker.database import open_owner_dsn
from worker.home import Home


async def migrate_database(config: Config) -> None:
    Home(config.home).prepare()
    async with open_owner_dsn(config) as (owner_dsn, _):
        applied = await migrate(owner_dsn)
    print("\n".join(f"applied {version}" for version in applied) or "the database is up to date")
