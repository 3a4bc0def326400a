"""The database behind a real pgbouncer in transaction mode, where each transaction may get another connection."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from migrations.embedded import EmbeddedPostgres
from migrations.pool import Database, Login, UnsafeRole
from tests.proxy import proxied
from tests.scripted import ScriptedModel
from tests.serving import ROOT
from tests.worker.answering import MODEL, post
from tests.worker.sharing import colleagues

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
START_S = 60.0
SERVERS = 3  # connections that all clients share, fewer than there are clients
CONFIG = """
[databases]
* = host={server} port=5432 dbname=postgres
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {folder}
unix_socket_mode = 0777
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {servers}
{user}
"""


@contextmanager
def bouncer(server: Path) -> Iterator[Path]:
    """The folder of the socket of a pgbouncer before the server at this socket. It runs as nobody where we are root."""
    program = subprocess.run([ROOT / "deploy/pooler.sh"], check=True, capture_output=True, text=True).stdout.strip()
    server.parent.chmod(0o711)
    server.chmod(0o777)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "users").write_text('"firsttoken_app" ""\n"postgres" ""\n')
        file, user = folder / "pgbouncer.ini", "user = nobody" if os.geteuid() == 0 else ""
        file.write_text(CONFIG.format(server=server.parent, folder=folder, servers=SERVERS, user=user))
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([program, file], stdout=log, stderr=log)
        try:
            give_up_at = time.monotonic() + START_S
            while not _listens(folder / ".s.PGSQL.6432"):  # its file is there a moment before
                assert process.poll() is None and time.monotonic() < give_up_at, (folder / "log").read_text()
                time.sleep(0.02)
            yield folder
        finally:
            process.kill()
            process.wait()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trial:
        return trial.connect_ex(str(path)) == 0


@pytest.fixture
async def pooler(postgres: EmbeddedPostgres, owner_dsn: str) -> AsyncIterator[Path]:
    """The server does not know who nobody is: what pgbouncer sends comes by a process that it knows."""
    async with proxied(postgres.app_dsn) as proxy:
        with bouncer(Path(proxy._path)) as folder:
            yield folder


def dsn(user: str, pooler: Path) -> str:
    return f"postgresql://{user}@/postgres?host={pooler}&port=6432&sslmode=disable"


@pytest.fixture
async def database(pooler: Path, owner_dsn: str) -> AsyncIterator[Database]:
    direct = Login(owner_dsn, "firsttoken_app")
    database = await Database.connect(dsn("firsttoken_app", pooler), direct=direct)
    yield database
    await database.close()


async def test_many_tenants_at_once_see_their_own_rows_over_a_few_connections(
    database: Database, owner_dsn: str
) -> None:
    owner = await asyncpg.connect(owner_dsn)
    tenants = [await owner.fetchval("select ensure_tenant($1)", f"test-{uuid4()}") for _ in range(40)]

    async def once(number: int) -> tuple[str, bool]:
        tenant = tenants[number]
        async with database.tenant(tenant) as connection:
            await connection.execute("insert into conversations (tenant_id, id) values ($1, $2)", tenant, f"c{tenant}")
        async with database.anonymous() as connection:
            nothing = await connection.fetchval("select count(*) from conversations where id like $1", "c%")
        async with database.tenant(tenant) as connection:
            (row,) = await connection.fetch("select id from conversations where created_at > $1", LONG_AGO)
        return row["id"], nothing == 0

    told = await asyncio.gather(*map(once, range(len(tenants))))
    assert told == [(f"c{tenant}", True) for tenant in tenants]
    await owner.close()


async def test_what_lasts_longer_than_a_transaction_has_a_connection_of_its_own(
    database: Database, owner_dsn: str
) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()
    number, channel = 4_242_424_242, f"test_{uuid4().hex}"
    other = await asyncpg.connect(owner_dsn)
    async with database.direct() as connection:
        assert await connection.fetchval("select current_user") == "firsttoken_app"
        await connection.add_listener(channel, lambda *told: heard.put_nowait(told[-1]))
        await connection.execute("select pg_advisory_lock($1)", number)
        assert not await other.fetchval("select pg_try_advisory_lock($1)", number)
        async with database.anonymous() as sender:
            await sender.execute("select pg_notify($1, 'news')", channel)
        async with asyncio.timeout(60):
            assert await heard.get() == "news"
    async with asyncio.timeout(60):  # it died with its connection
        await other.execute("select pg_advisory_lock($1)", number)
    await other.close()


@pytest.mark.parametrize("background", [False, True])
async def test_workers_answer_and_hear_each_other_behind_it(database: Database, background: bool) -> None:
    model = ScriptedModel(["Hello there, friend."] * 2, name=MODEL)
    async with colleagues(database, model) as (maker, other):
        response = await post(maker, "/v1/responses", {"input": "hello", "background": background})
        async with asyncio.timeout(60):
            async with other.get(f"/v1/responses/{response['id']}?stream=true") as again:
                told = await again.text()
    assert "response.completed" in told and "friend." in told


async def test_the_login_of_the_pooler_is_that_of_the_plain_role(pooler: Path, owner_dsn: str) -> None:
    assert urlsplit(owner_dsn).username == "postgres"
    with pytest.raises(UnsafeRole):
        await Database.connect(dsn("postgres", pooler), direct=Login(owner_dsn, "firsttoken_app"))
