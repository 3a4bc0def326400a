"""What a database server runs, asked without changing anything."""

from __future__ import annotations

import asyncpg

from migrations.runner import MigrationError, check_server

CONNECT_TIMEOUT_S = 10.0


async def server_versions(dsn: str) -> tuple[int, str]:
    """Major version of Postgres, and the version of pgvector that it offers.

    Raises MigrationError when the server cannot be reached or cannot hold the tables.
    """
    try:
        connection = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise MigrationError(f"The database cannot be reached: {error or type(error).__name__}") from error
    try:
        query = "select default_version from pg_available_extensions where name = 'vector'"
        major, pgvector = connection.get_server_version().major, await connection.fetchval(query)
    finally:
        await connection.close()
    check_server(major, pgvector)
    return major, pgvector
