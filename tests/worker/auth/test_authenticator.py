"""Who gets in: every kind of credential, right, wrong, expired and revoked, over HTTP."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web
from joserfc.jwk import OctKey

from migrations.pool import Database
from tests.worker.harness import SECRET, Client, make_services, serving
from tests.worker.issuer import HMAC_SECRET, claims, sign
from worker.auth.audit import Actor
from worker.auth.authenticator import CACHE_S
from worker.auth.keys import Grant, Keys
from worker.auth.scope import USUAL
from worker.auth.session import LIFETIME_S, Sessions
from worker.config import Config
from worker.http.request import PRINCIPAL

KEY = OctKey.import_key(HMAC_SECRET)


async def whoami(request: web.Request) -> web.Response:
    principal = request[PRINCIPAL]
    return web.json_response({"tenant": str(principal.tenant_id), "via": principal.via, "sub": principal.subject})


@pytest.fixture(scope="module")
async def client(database: Database) -> AsyncIterator[Client]:
    services = make_services(database, Config(jwt_secret=HMAC_SECRET))
    async with serving(services, web.get("/v1/whoami", whoami), web.post("/v1/whoami", whoami)) as client:
        yield client


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database, SECRET)


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


async def ask(client: Client, headers: dict[str, str], *, method: str = "GET") -> tuple[int, Any]:
    async with client.request(method, "/v1/whoami", headers=headers) as response:
        return response.status, await response.json()


async def test_an_api_key_speaks_for_its_tenant(client: Client, keys: Keys, tenant_id: UUID) -> None:
    id, key = await keys.create(tenant_id, "laptop")
    for _ in range(2):  # from the database, then from the cache
        assert await ask(client, bearer(key)) == (200, {"tenant": str(tenant_id), "via": "api_key", "sub": id})


async def test_a_worker_says_at_its_start_that_tokens_for_others_count(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(make_services(database, Config(jwt_jwks_url="http://127.0.0.1:9/keys"))):
        assert [line for line in caplog.messages if "--jwt-issuer and --jwt-audience" in line]


async def test_an_expired_and_a_revoked_key_are_refused(client: Client, keys: Keys, tenant_id: UUID) -> None:
    _, expired = await keys.create(tenant_id, "old", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    id, revoked = await keys.create(tenant_id, "lost")
    assert await keys.revoke(tenant_id, id)
    for key in (expired, revoked):
        status, body = await ask(client, bearer(key))
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")


async def test_a_key_in_the_cache_ends_with_the_cache(
    client: Client, keys: Keys, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, key = await keys.create(tenant_id, "lost")
    assert (await ask(client, bearer(key)))[0] == 200
    await keys.revoke(tenant_id, id)
    later = time.monotonic() + CACHE_S + 1
    monkeypatch.setattr("worker.auth.authenticator.time", SimpleNamespace(time=time.time, monotonic=lambda: later))
    assert (await ask(client, bearer(key)))[0] == 401


async def test_a_revoked_key_ends_with_the_cache_also_when_the_clock_is_set_back(
    client: Client, keys: Keys, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, key = await keys.create(tenant_id, "lost")
    assert (await ask(client, bearer(key)))[0] == 200
    await keys.revoke(tenant_id, id)
    yesterday, later = time.time() - 24 * 3600, time.monotonic() + CACHE_S + 1
    clocks = SimpleNamespace(time=lambda: yesterday, monotonic=lambda: later)
    monkeypatch.setattr("worker.auth.authenticator.time", clocks)
    assert (await ask(client, bearer(key)))[0] == 401


async def test_a_tenant_cannot_revoke_or_see_anothers_keys(keys: Keys, tenant_id: UUID, other_tenant_id: UUID) -> None:
    id, _ = await keys.create(tenant_id, "mine")
    assert not await keys.revoke(other_tenant_id, id)
    assert await keys.list(other_tenant_id) == []
    assert [key.state for key in await keys.list(tenant_id)] == ["active"]


async def test_only_a_keyed_hash_of_a_key_is_stored(keys: Keys, tenant_id: UUID, database: Database) -> None:
    _, key = await keys.create(tenant_id, "secret")
    async with database.tenant(tenant_id) as connection:
        row = str(dict((await connection.fetch("select * from api_keys"))[0]))
    assert key not in row and key[3:] not in row
    assert await Keys(database, type(SECRET)(b"another secret")).authenticate(key) is None


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "ft_x",
        "Bearer ft_wrong",
        "Bearer a.b.c",
        "Bearer é",
        "Bearer " + "x" * 8180,
    ],
)
async def test_a_header_that_is_not_a_good_credential_gets_401(client: Client, authorization: str) -> None:
    status, body = await ask(client, {"Authorization": authorization})
    assert status == 401
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["type"] == "authentication_error"


async def test_no_credentials_get_401_that_says_what_to_send(client: Client) -> None:
    async with client.get("/v1/models") as response:
        assert response.status == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert "Authorization: Bearer" in (await response.json())["error"]["message"]


async def test_the_first_token_of_an_issuer_makes_its_tenant(client: Client, keys: Keys) -> None:
    token = sign(claims(sub="carol"), KEY, "HS256")
    tenant = await keys.tenant("jwt:carol")
    assert await ask(client, bearer(token)) == (200, {"tenant": str(tenant), "via": "jwt", "sub": "carol"})
    status, body = await ask(client, bearer(sign(claims(exp=1), KEY, "HS256")))
    assert status == 401 and "expired" in body["error"]["message"]


async def test_a_subject_called_local_is_not_the_local_tenant(client: Client, keys: Keys) -> None:
    _, body = await ask(client, bearer(sign(claims(sub="local"), KEY, "HS256")))
    assert body["tenant"] != str(await keys.tenant("local"))


async def test_a_link_signs_in_once(client: Client, keys: Keys, tenant_id: UUID) -> None:
    token = await keys.create_link(tenant_id)
    async with client.get("/", params={"token": token}, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, "/")
        cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie
    pair = cookie.split(";")[0]
    status, body = await ask(client, {"Cookie": pair})
    assert (status, body["tenant"], body["via"]) == (200, str(tenant_id), "session")
    client.session.cookie_jar.clear()
    async with client.get("/", params={"token": token}, allow_redirects=False) as response:
        assert response.status == 303 and "Set-Cookie" not in response.headers
        assert response.headers["Location"] == "/#link", "the words about links that do not work"


async def test_asking_for_the_headers_of_a_link_does_not_use_it_up(client: Client, keys: Keys, tenant_id: UUID) -> None:
    token = await keys.create_link(tenant_id)
    async with client.head("/", params={"token": token}, allow_redirects=False):
        pass
    assert await keys.redeem_link(token) is not None
    assert await keys.redeem_link(token) is None


async def session_cookie(database: Database, tenant_id: UUID, sessions: Sessions | None = None) -> dict[str, str]:
    sessions = sessions or Sessions(database, SECRET)
    response = web.Response()
    await sessions.start(response, Grant("link_1", tenant_id, USUAL), Actor("link", "link_1"), "", secure=False)
    return {"Cookie": f"{sessions.cookie_name}={response.cookies[sessions.cookie_name].value}"}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://{host}"}, 200),
        ({"Origin": "http://evil.test"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://{host}", "Sec-Fetch-Site": "cross-site"}, 403),
        ({}, 403),
    ],
)
async def test_a_session_writes_only_from_our_own_page(
    client: Client, database: Database, tenant_id: UUID, headers: dict[str, str], expected: int
) -> None:
    host = f"{client.host}:{client.port}"
    headers = {name: value.format(host=host) for name, value in headers.items()}
    status, _ = await ask(client, {**await session_cookie(database, tenant_id), **headers}, method="POST")
    assert status == expected


async def test_a_forged_or_expired_session_is_nobody(
    client: Client, database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = Sessions(database, type(SECRET)(b"the secret of another home"))
    name, value = (await session_cookie(database, tenant_id))["Cookie"].split("=", 1)
    stolen = (await session_cookie(database, tenant_id, foreign))["Cookie"].split("=", 1)[1]
    for cookie in (stolen, value[:-1] + ("0" if value[-1] != "0" else "1"), "", ".", "é.é", value.split(".")[0]):
        assert (await ask(client, {"Cookie": f"{name}={cookie}"}))[0] == 401
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + LIFETIME_S + 1)
    assert (await ask(client, {"Cookie": f"{name}={value}"}))[0] == 401


def test_two_installations_on_one_host_keep_their_own_cookies(database: Database) -> None:
    assert Sessions(database, SECRET).cookie_name != Sessions(database, type(SECRET)(b"another")).cookie_name


async def test_public_paths_need_nobody(client: Client) -> None:
    for path in ("/health", "/healthz", "/readyz"):
        async with client.get(path, headers={"Authorization": "Bearer wrong"}) as response:
            assert response.status == 200


@pytest.mark.parametrize("path", ["/", "/ops"])
async def test_the_pages_show_how_to_sign_in_to_nobody(client: Client, path: str) -> None:
    async with client.get(path) as response:
        assert response.status == 401
        assert response.content_type == "text/html"


ORGANISATION = ("/sign-in/organisation", "/sign-in/organisation/callback")
OPEN = ("/", "/ops", "/shared", "/v1/shared/{token}", "/health", "/healthz", "/readyz", "/openapi.json", *ORGANISATION)


async def test_no_address_is_open_by_oversight(client: Client) -> None:
    assert client.app is not None
    for route in client.app.router.routes():
        path = route.resource.canonical if route.resource else ""
        if path in OPEN or path.startswith("/static/"):
            continue
        async with client.request(route.method, re.sub(r"{\w+}", "x", path)) as response:
            assert response.status == 401, path
