"""Every route says who may call it, and that is who may."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web

from migrations.pool import Database
from tests.worker import harness
from tests.worker.harness import SECRET, Client, make_services, serving
from worker.auth.keys import Keys
from worker.auth.scope import USUAL, Scope
from worker.http.request import EVERYBODY, VISITORS, Access

OPEN = {
    **dict.fromkeys(("/health", "/healthz", "/readyz", "/openapi.json", "/shared", "/v1/shared/{token}"), EVERYBODY),
    **dict.fromkeys(("/sign-in/organisation", "/sign-in/organisation/callback"), EVERYBODY),
    **dict.fromkeys(("/", "/ops"), VISITORS),
}
STATIC = "/static/{version}/{path}"


@pytest.fixture(scope="module")
async def client(database: Database) -> AsyncIterator[Client]:
    async with serving(make_services(database)) as client:
        yield client


def access(route: web.AbstractRoute) -> Access | None:
    declared: Access | None = getattr(route.handler, "access", None)
    return declared


def declared(client: Client) -> Iterable[tuple[str, str, Access]]:
    """Method, path and access of every route."""
    assert client.app is not None
    for route in client.app.router.routes():
        path = route.resource.canonical if route.resource else ""
        found = access(route)
        assert found is not None, f"{route.method} {path} does not say which scope it needs"
        yield route.method, path, found


async def bearer(database: Database, tenant_id: UUID, *scopes: Scope) -> dict[str, str]:
    _, key = await Keys(database, SECRET).create(tenant_id, "test", scopes=scopes)
    return {"Authorization": f"Bearer {key}"}


async def test_every_route_declares_a_scope_and_only_pages_and_health_are_open(client: Client) -> None:
    for _, path, found in declared(client):
        assert found.scopes or found == OPEN.get(path, EVERYBODY if path == STATIC else None), path


async def test_every_route_is_closed_to_all_other_scopes(client: Client, database: Database, tenant_id: UUID) -> None:
    keys = {scope: await bearer(database, tenant_id, scope) for scope in Scope}
    for method, path, found in declared(client):
        for scope in set(Scope) - found.scopes if found.scopes else ():
            address = re.sub(r"{\w+}", "x", path)
            async with client.request(method, address, headers=keys[scope]) as response:
                assert response.status == 403, f"{method} {path} with {scope}"
                if method != "HEAD":
                    error = (await response.json())["error"]
                    assert error["code"] == "missing_scope"
                    assert all(name in error["message"] for name in found.scopes)


async def test_a_route_that_nobody_declared_is_open_to_no_one(
    database: Database, tenant_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgotten(_: web.Request) -> web.Response:
        return web.json_response({})

    monkeypatch.setattr(harness, "declared", lambda _, *routes: routes)
    headers = await bearer(database, tenant_id, *Scope)
    async with (
        serving(make_services(database), web.get("/v1/forgotten", forgotten)) as client,
        client.get("/v1/forgotten", headers=headers) as response,
    ):
        assert response.status == 403


@pytest.mark.parametrize(
    ("scope", "path", "status"),
    [
        (Scope.CHAT, "/v1/models", 200),
        (Scope.CHAT, "/ops/api/audit", 403),
        (Scope.OPS, "/ops/api/summary", 200),
        (Scope.OPS, "/metrics", 200),
        (Scope.ADMIN, "/ops/api/audit", 200),
        (Scope.ADMIN, "/metrics", 403),
        (Scope.INGEST, "/v1/files", 200),
        (Scope.INGEST, "/v1/conversations", 403),
    ],
)
async def test_a_key_opens_what_its_scope_is_for(
    client: Client, database: Database, tenant_id: UUID, scope: Scope, path: str, status: int
) -> None:
    async with client.get(path, headers=await bearer(database, tenant_id, scope)) as response:
        assert response.status == status


async def test_a_key_without_a_choice_of_scopes_may_ask_and_upload(database: Database, tenant_id: UUID) -> None:
    keys = Keys(database, SECRET)
    _, key = await keys.create(tenant_id, "test")
    grant: Any = await keys.authenticate(key)
    assert grant.scopes == USUAL == {Scope.CHAT, Scope.INGEST}
