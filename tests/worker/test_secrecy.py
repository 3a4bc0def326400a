"""Nothing secret stands in a log, a stored trace, an answer or a repr, whatever happens.

Every secret has a mark that no other text has; what the worker writes is searched for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
import pytest
from aiohttp import web

from agents.mcp_config import ServerTable
from inference.trace import Trace
from migrations.pool import Database
from migrations.runner import MigrationError, examine, migrate
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, services_with
from tests.worker.harness import SECRET, Client, serving
from worker.auth.jwt import Jwks, KeysUnavailable
from worker.auth.keys import Keys
from worker.auth.scope import ALL
from worker.auth.secret import Secret
from worker.config import Config, load
from worker.http.request import PRINCIPAL
from worker.lifecycle.ready_file import Ready
from worker.services import Services
from worker.setting import ConfigError

MARK = "s3cr3tm4rk"
CONFIG = Config(
    secret=f"{MARK}-of-the-installation-000000000",
    secret_before=f"{MARK}-before",
    database_url=f"postgresql://firsttoken:{MARK}@db.test/firsttoken",
    jwt_secret=f"{MARK}-of-an-issuer-0000000000000000000",
)
PAGE = {"Sec-Fetch-Site": "same-origin"}


@dataclass
class Caller:
    """`hidden` is what may stand nowhere, and `told` what was answered."""

    client: Client
    services: Services
    tenant_id: UUID
    key: str
    cookie: str
    hidden: set[str]
    told: list[str] = field(default_factory=list)

    async def ask(self, method: str, path: str, *, headers: dict[str, str] | None = None, json: Any = None) -> int:
        headers = {"Authorization": f"Bearer {self.key}"} if headers is None else headers
        async with self.client.request(method, path, headers=headers, json=json) as answer:
            with suppress(aiohttp.ClientPayloadError):  # one that breaks off
                self.told.append(await answer.text())
            return answer.status


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """All of it, whoever writes."""
    with caplog.at_level(logging.DEBUG):
        for name in ("firsttoken", "aiohttp", "asyncio"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        yield caplog
        for name in ("firsttoken", "aiohttp", "asyncio"):
            logging.getLogger(name).setLevel(logging.NOTSET)


async def bug(request: web.Request) -> web.Response:
    raise RuntimeError(f"a bug met {request[PRINCIPAL]!r}")


async def breaks_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    raise RuntimeError("half an answer")


@pytest.fixture
async def caller(database: Database, tenant_id: UUID) -> AsyncIterator[Caller]:
    model = ScriptedModel(["Hello."], name=MODEL)
    services = services_with(database, model, replace(CONFIG, database_url=None))
    keys = Keys(database, SECRET)
    _, key = await keys.create(tenant_id, "laptop", scopes=ALL)
    token = await keys.create_link(tenant_id, scopes=ALL)
    async with serving(services, web.get("/v1/bug", bug), web.get("/v1/breaks-off", breaks_off)) as client:
        async with client.get(f"/?token={token}", allow_redirects=False) as answer:
            cookie = answer.headers["Set-Cookie"].split(";")[0]
        client.session.cookie_jar.clear()
        value = cookie.partition("=")[2]
        yield Caller(client, services, tenant_id, key, cookie, {MARK, key, key[3:], token, value, value.split(".")[1]})


async def stored(caller: Caller, owner_dsn: str) -> str:
    """Everything that is kept of what was done, but for the tables of credentials themselves."""
    await caller.services.telemetry.flush()
    connection = await asyncpg.connect(owner_dsn)
    try:
        rows: list[Any] = []
        for table in ("traces", "spans", "audit_log", "responses", "response_events", "browser_sessions", "api_keys"):
            rows += await connection.fetch(f"select * from {table} where tenant_id = $1", caller.tenant_id)
    finally:
        await connection.close()
    assert len(rows) > 10
    return str([dict(row) for row in rows])


def leaks(caller: Caller, *texts: str) -> set[str]:
    return {secret for secret in caller.hidden for text in (*texts, *caller.told) if secret in text}


async def test_turns_and_errors_leave_no_credential_behind(
    caller: Caller, owner_dsn: str, log: pytest.LogCaptureFixture
) -> None:
    browser = {"Cookie": caller.cookie, **PAGE}
    for headers in (None, browser):
        assert await caller.ask("POST", "/v1/responses", headers=headers, json={"input": "hello"}) == 200
        assert await caller.ask("POST", "/v1/responses", headers=headers, json={"input": "hi", "stream": True}) == 200
        assert await caller.ask("POST", "/v1/responses", headers=headers, json={"input": 7}) == 400
        assert await caller.ask("POST", "/v1/responses", headers=headers, json={"input": "x", "model": "gpt-9"}) == 404
        assert await caller.ask("GET", "/v1/bug", headers=headers) == 500
        assert await caller.ask("GET", "/v1/breaks-off", headers=headers) == 200
        assert await caller.ask("GET", "/ops/api/audit", headers=headers) == 200
        assert await caller.ask("GET", "/v1/sessions", headers=headers) == 200
    wrong = [f"Bearer {caller.key}x", f"Basic {caller.key}", caller.key, f"Bearer {caller.key}.{caller.key}.x"]
    for authorization in wrong:
        assert await caller.ask("GET", "/v1/models", headers={"Authorization": authorization}) == 401
    assert await caller.ask("GET", "/v1/models", headers={"Cookie": f"{caller.cookie}0"}) == 401
    assert await caller.ask("POST", "/v1/responses", headers={"Cookie": caller.cookie}, json={"input": "x"}) == 403
    kept = await stored(caller, owner_dsn)
    assert "a bug met" in log.text
    assert leaks(caller, log.text, kept) == set()


@pytest.mark.parametrize(
    "line",
    [
        b"Authorization: Bearer %b\x00",
        b"Authorization : Bearer %b",
        b"Authorization\x01: Bearer %b",
        b"Authorization: Bearer %b\r\nContent-Length: x",
        b"Authorization: Bearer %b\r\nTransfer-Encoding: %b",
        b"Authorization: Bearer " + b"%b" * 200,
    ],
)
async def test_a_request_that_cannot_be_read_is_not_quoted_in_the_log(
    caller: Caller, log: pytest.LogCaptureFixture, line: bytes
) -> None:
    reader, writer = await asyncio.open_connection(caller.client.host, caller.client.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + line.replace(b"%b", caller.key.encode()) + b"\r\n\r\n")
    told = await asyncio.wait_for(reader.read(), 60)  # its sender alone
    writer.close()
    assert told.startswith(b"HTTP/1.")
    assert leaks(caller, log.text) == set()


async def test_a_database_that_is_away_is_not_told_with_its_password(
    caller: Caller, database: Database, log: pytest.LogCaptureFixture
) -> None:
    await caller.ask("GET", "/v1/models")
    for url in (
        f"postgresql://firsttoken:{MARK}@127.0.0.1:1/x",
        f"postgresql://firsttoken:{MARK}/x@127.0.0.1/x",  # the slash makes a port of the rest
        f"postgresql://firsttoken:x@127.0.0.1:{MARK}/x",
        f"mysql://firsttoken:{MARK}@127.0.0.1/x",
        f"postgresql://firsttoken:{MARK}[@127.0.0.1/x",
    ):
        for act in (migrate, examine):
            with pytest.raises(MigrationError) as refused:
                await act(url)
            caller.told.append(f"{refused.value}{refused.value.__cause__!r}")
    assert leaks(caller, log.text) == set()


async def test_settings_are_not_quoted_with_what_is_secret_in_them(log: pytest.LogCaptureFixture) -> None:
    for flags in ({"jwt_jwks_url": f"ftp://x:{MARK}@issuer.test"}, {"jwt_secret": MARK}):
        with pytest.raises(ConfigError) as refused:
            load(flags, {})
        assert MARK not in str(refused.value)
    with pytest.raises(KeysUnavailable) as unavailable:
        await Jwks(f"http://x:{MARK}@127.0.0.1:1/keys").find("x", "ES256", Trace())
    assert "127.0.0.1" in log.text
    assert MARK not in f"{log.text}{unavailable.value}"


async def test_no_repr_tells_a_secret(caller: Caller) -> None:
    secret = Secret(MARK.encode())
    services = replace(caller.services, config=CONFIG)
    principal = await caller.services.authenticator.identify(
        {"Authorization": f"Bearer {caller.key}"}, {}, "GET", Trace()
    )
    parts = [getattr(services, name) for name in services.__dataclass_fields__]
    ready = Ready("http://x", caller.key, f"http://x/?token={MARK}", "http://x/ops", 1)
    server = ServerTable(url="http://x", headers={"Authorization": MARK}, environment={"TOKEN": MARK})
    shown = [services, CONFIG, principal, secret, ready, server, Keys(caller.services.database, secret), *parts]
    assert "Config(" in repr(services)
    assert leaks(caller, *map(repr, shown), *map(str, shown)) == set()
