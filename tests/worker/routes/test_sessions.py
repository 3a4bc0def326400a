"""Browsers that are signed in: who sees them, who ends them, and what is written down of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any
from uuid import UUID

import pytest

from migrations.pool import Database
from tests.worker.harness import SECRET, Client, make_services, serving
from worker.auth.audit import Act
from worker.auth.keys import Keys
from worker.auth.scope import ALL, USUAL, Scope
from worker.services import SERVICES

FROM_THE_PAGE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
async def client(database: Database) -> AsyncIterator[Client]:
    async with serving(make_services(database)) as client:
        yield client


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database, SECRET)


async def sign_in(client: Client, keys: Keys, tenant_id: UUID, scopes: Iterable[Scope] = USUAL) -> dict[str, str]:
    """The headers of a browser that has just followed a link."""
    path = f"/?token={await keys.create_link(tenant_id, scopes=scopes)}"
    async with client.get(path, headers={"User-Agent": "Browser/1.0"}, allow_redirects=False) as answer:
        cookie = answer.headers["Set-Cookie"].split(";")[0]
    client.session.cookie_jar.clear()
    return {"Cookie": cookie, **FROM_THE_PAGE}


async def bearer(keys: Keys, tenant_id: UUID, *scopes: Scope) -> dict[str, str]:
    return {"Authorization": f"Bearer {(await keys.create(tenant_id, 'test', scopes=scopes))[1]}"}


async def ask(client: Client, method: str, path: str, headers: dict[str, str]) -> tuple[int, Any]:
    async with client.request(method, path, headers=headers) as answer:
        return answer.status, await answer.json()


async def sessions(client: Client, headers: dict[str, str]) -> list[Any]:
    status, body = await ask(client, "GET", "/v1/sessions", headers)
    assert status == 200
    return list(body["data"])


async def test_a_browser_sees_its_own_session_and_signs_itself_out(client: Client, keys: Keys, tenant_id: UUID) -> None:
    browser, other = await sign_in(client, keys, tenant_id), await sign_in(client, keys, tenant_id)
    [session] = await sessions(client, browser)
    assert session["current"] and session["agent"] == "Browser/1.0" and session["address"] == "127.0.0.1"
    async with client.delete("/v1/sessions/current", headers=browser) as answer:
        assert answer.status == 200
        assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert (await ask(client, "GET", "/v1/models", browser))[0] == 401
    assert (await ask(client, "GET", "/v1/models", other))[0] == 200


async def test_a_browser_ends_no_other_session(client: Client, keys: Keys, tenant_id: UUID) -> None:
    browser, other = await sign_in(client, keys, tenant_id), await sign_in(client, keys, tenant_id)
    [session] = await sessions(client, other)
    status, body = await ask(client, "DELETE", f"/v1/sessions/{session['id']}", browser)
    assert (status, body["error"]["code"]) == (403, "missing_scope")
    assert "admin" in body["error"]["message"]
    assert (await ask(client, "GET", "/v1/models", other))[0] == 200


async def test_who_alone_followed_links_signs_out_everywhere(client: Client, keys: Keys, tenant_id: UUID) -> None:
    browser, other = [await sign_in(client, keys, tenant_id, ALL) for _ in range(2)]
    assert [session["own"] for session in await sessions(client, browser)] == [True, True]
    async with client.delete("/v1/sessions", headers=browser) as answer:
        assert (answer.status, len((await answer.json())["data"])) == (200, 2)
        assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert [(await ask(client, "GET", "/v1/models", each))[0] for each in (browser, other)] == [401, 401]


async def test_a_guest_of_a_tenant_ends_no_session_but_its_own_by_signing_out_everywhere(
    client: Client, keys: Keys, tenant_id: UUID
) -> None:
    browser, other = await sign_in(client, keys, tenant_id), await sign_in(client, keys, tenant_id)
    assert (await ask(client, "DELETE", "/v1/sessions", browser))[0] == 200
    assert [(await ask(client, "GET", "/v1/models", each))[0] for each in (browser, other)] == [401, 200]


async def test_an_api_key_has_no_sessions_of_its_own(client: Client, keys: Keys, tenant_id: UUID) -> None:
    browser, admin = await sign_in(client, keys, tenant_id), await bearer(keys, tenant_id, Scope.ADMIN)
    status, body = await ask(client, "DELETE", "/v1/sessions", admin)
    assert (status, body["error"]["code"]) == (403, "no_session")
    assert (await ask(client, "GET", "/v1/models", browser))[0] == 200


async def test_an_admin_sees_and_ends_every_session_of_the_tenant_and_no_other(
    client: Client, keys: Keys, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    browser, foreign = await sign_in(client, keys, tenant_id), await sign_in(client, keys, other_tenant_id)
    admin = await bearer(keys, tenant_id, Scope.ADMIN)
    [session] = await sessions(client, admin)
    [foreigner] = await sessions(client, foreign)
    assert (await ask(client, "DELETE", f"/v1/sessions/{foreigner['id']}", admin))[0] == 404
    assert (await ask(client, "DELETE", f"/v1/sessions/{session['id']}", admin))[0] == 200
    assert (await ask(client, "DELETE", f"/v1/sessions/{session['id']}", admin))[0] == 404
    assert await sessions(client, admin) == []
    assert (await ask(client, "GET", "/v1/models", browser))[0] == 401
    assert (await ask(client, "GET", "/v1/models", foreign))[0] == 200


async def test_another_worker_notices_when_it_checks_who_it_let_in(
    client: Client, keys: Keys, tenant_id: UUID, database: Database
) -> None:
    browser, admin = await sign_in(client, keys, tenant_id), await bearer(keys, tenant_id, Scope.ADMIN)
    [session] = await sessions(client, admin)
    async with serving(make_services(database)) as elsewhere:
        await ask(elsewhere, "DELETE", f"/v1/sessions/{session['id']}", admin)
    assert client.app is not None
    await client.app[SERVICES].authenticator.recheck()
    assert (await ask(client, "GET", "/v1/models", browser))[0] == 401


async def test_who_is_let_in_costs_the_database_nothing_until_the_next_check(
    client: Client, keys: Keys, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, program = await sign_in(client, keys, tenant_id), await bearer(keys, tenant_id, Scope.CHAT)
    for headers in (browser, program):
        assert (await ask(client, "GET", "/v1/models", headers))[0] == 200
    assert client.app is not None
    monkeypatch.setattr(client.app[SERVICES].authenticator.keys, "authenticate", None)
    monkeypatch.setattr(client.app[SERVICES].authenticator.sessions, "scopes", None)
    for headers in (browser, program):
        assert (await ask(client, "GET", "/v1/models", headers))[0] == 200


async def test_what_was_done_is_in_the_audit_log_of_its_tenant_alone(
    client: Client, keys: Keys, tenant_id: UUID, other_tenant_id: UUID
) -> None:
    browser = await sign_in(client, keys, tenant_id, ALL)
    [session] = await sessions(client, browser)
    await ask(client, "DELETE", f"/v1/sessions/{session['id']}", browser)
    admin = await bearer(keys, tenant_id, Scope.ADMIN)
    status, body = await ask(client, "GET", "/ops/api/audit", admin)
    assert status == 200
    made, ended, started, linked = body["data"]
    acts = [note["act"] for note in (linked, started, ended, made)]
    assert acts == [Act.LINK_CREATED, Act.SESSION_CREATED, Act.SESSION_REVOKED, Act.KEY_CREATED]
    assert linked["of"] == started["subject"], "the session tells by which link it began"
    assert (ended["via"], ended["subject"], ended["address"]) == ("session", session["id"], "127.0.0.1")
    status, page = await ask(client, "GET", f"/ops/api/audit?limit=1&before={ended['position']}", admin)
    assert (page["data"], page["has_more"]) == ([started], True)
    _, foreign = await ask(client, "GET", "/ops/api/audit", await bearer(keys, other_tenant_id, Scope.ADMIN))
    assert [note["act"] for note in foreign["data"]] == [Act.KEY_CREATED]
