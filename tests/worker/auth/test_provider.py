"""People of an organisation sign in at its provider: a real one of a package, which another process could be."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from migrations.pool import Database
from tests.worker.harness import SECRET, Client, make_services, serving
from worker.auth import provider as provider_module
from worker.auth import throttle as throttle_module
from worker.auth.provider import ATTEMPT_S, Attempt
from worker.auth.throttle import FAILURES_MAX
from worker.config import Config
from worker.routes.sessions import CALLBACK, LIFETIME_S, PATH
from worker.services import SERVICES

ALICE = {"sub": "alice", "org": "acme", "groups": ["staff", "ops"]}
BOB = {"sub": "bob", "org": "acme", "groups": ["staff"]}
STRAY = {"sub": "stray"}
START_S = 60.0

Served: TypeAlias = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture(scope="session")
def issuer() -> Iterator[str]:
    """The URL of a provider; its people need no password."""
    port = free_port()
    people = [part for person in (ALICE, BOB, STRAY) for part in ("--user-claims", json.dumps(person))]
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), "-n", "true", *people]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        give_up_at = time.monotonic() + START_S
        while not _listens(port):
            assert process.poll() is None and time.monotonic() < give_up_at, "the provider did not start"
            time.sleep(0.02)
        yield f"http://localhost:{port}"
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def served(database: Database, issuer: str) -> Served:
    @asynccontextmanager
    async def served(**changes: Any) -> AsyncIterator[Client]:
        usual = {"oidc_issuer": issuer, "oidc_client_id": "firsttoken", "oidc_client_secret": "a secret"}
        claims = {"oidc_tenant_claim": "org", "oidc_operator": "groups=ops"}
        async with serving(make_services(database, config=Config(**{**usual, **claims, **changes}))) as client:
            yield client

    return served


async def at_the_provider(client: Client, who: str) -> str:
    """The address to which the provider sends the browser back, once somebody signed in there."""
    left = await client.get(PATH, allow_redirects=False)
    assert left.status == 303, await left.text()
    async with (
        aiohttp.ClientSession() as browser,
        browser.post(left.headers["Location"], data={"sub": who}, allow_redirects=False) as answer,
    ):
        assert answer.status == 302, await answer.text()
        back = urlsplit(answer.headers["Location"])
    assert back.path == CALLBACK
    return f"{back.path}?{back.query}"


async def sign_in(client: Client, who: str) -> aiohttp.ClientResponse:
    return await client.get(await at_the_provider(client, who), allow_redirects=False)


async def test_who_signed_in_there_has_a_session_of_the_tenant_that_the_claim_names(served: Served) -> None:
    async with served() as client:
        arrived = await sign_in(client, "alice")
        assert arrived.status == 200 and arrived.headers["Refresh"] == "0; url=/"
        cookie = arrived.headers.getall("Set-Cookie")[0]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and f"Max-Age={LIFETIME_S}" in cookie
        assert (await client.get("/")).status == 200
        session = await current(client)
        assert set(session["scopes"]) == {"chat", "ingest", "ops"}
        client.session.cookie_jar.clear()
        await sign_in(client, "bob")  # of the same organisation, but no operator
        session = await current(client)
        assert set(session["scopes"]) == {"chat", "ingest"}
        assert client.app is not None
        authenticator = client.app[SERVICES].authenticator
        acme = await authenticator.keys.known_tenant("oidc:acme")
        assert acme is not None and len(await authenticator.sessions.list(acme)) >= 2


async def current(client: Client, headers: Mapping[str, str] = {}) -> dict[str, Any]:
    """The session of the browser that asks: others of the same person are told of as well."""
    told = (await (await client.get("/v1/sessions", headers=headers)).json())["data"]
    session: dict[str, Any] = next(each for each in told if each["current"])
    return session


async def test_a_person_sees_and_ends_the_sessions_of_all_own_browsers_and_no_others(served: Served) -> None:
    async with served() as client:
        cookies = []
        for who in ("alice", "alice", "bob"):
            arrived = await sign_in(client, who)
            cookies.append(arrived.headers.getall("Set-Cookie")[0].split(";")[0])
            client.session.cookie_jar.clear()
        first, second, other = [{"Cookie": cookie, "Sec-Fetch-Site": "same-origin"} for cookie in cookies]
        told = (await (await client.get("/v1/sessions", headers=first)).json())["data"]
        assert {(each["person"], each["own"]) for each in told} == {("alice", True)}
        theirs, foreign = [(await current(client, headers))["id"] for headers in (second, other)]
        assert (await client.delete(f"/v1/sessions/{foreign}", headers=first)).status == 403
        assert theirs in {each["id"] for each in told}
        assert (await client.delete(f"/v1/sessions/{theirs}", headers=first)).status == 200
        assert (await client.get("/v1/models", headers=second)).status == 401
        assert (await client.delete("/v1/sessions", headers=first)).status == 200
        assert (await client.get("/v1/models", headers=other)).status == 200


async def test_the_request_has_a_challenge_of_which_only_the_browser_has_the_verifier(served: Served) -> None:
    async with served() as client:
        left = await client.get(PATH, allow_redirects=False)
        query = parse_qs(urlsplit(left.headers["Location"]).query)
        assert query["code_challenge_method"] == ["S256"] and query["response_type"] == ["code"]
        sealed = left.cookies.popitem()[1]
        attempt = Attempt.opened(sealed.value, SECRET)
        assert attempt is not None and query["code_challenge"] == [attempt.challenge]
        assert (query["state"], query["nonce"]) == ([attempt.state], [attempt.nonce])
        assert (sealed["samesite"], sealed["path"], sealed["max-age"]) == ("Lax", PATH, str(ATTEMPT_S))


async def refused(client: Client, address: str) -> None:
    answer = await client.get(address, allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (303, "/#refused")
    assert (await client.get("/")).status == 401


async def test_a_code_counts_in_the_browser_that_asked_for_it_and_once(served: Served) -> None:
    async with served() as client:
        address = await at_the_provider(client, "alice")
        jar = client.session.cookie_jar
        kept = list(jar)
        jar.clear()
        await refused(client, address)  # somebody else's browser
        jar.update_cookies({each.key: each for each in kept}, client.make_url(PATH))
        assert (await client.get(address, allow_redirects=False)).status == 200
        jar.clear()
        await refused(client, address)


async def test_a_code_for_another_attempt_is_refused(served: Served) -> None:
    async with served() as client:
        first = await at_the_provider(client, "alice")
        await client.get(PATH, allow_redirects=False)
        await refused(client, first)


async def test_who_has_no_tenant_is_not_let_in(served: Served) -> None:
    async with served() as client:
        await refused(client, await at_the_provider(client, "stray"))


async def test_who_says_no_there_is_not_signed_in(served: Served) -> None:
    async with served() as client:
        left = await client.get(PATH, allow_redirects=False)
        state = parse_qs(urlsplit(left.headers["Location"]).query)["state"][0]
        await refused(client, f"{CALLBACK}?error=access_denied&state={state}")


async def test_a_provider_that_calls_itself_otherwise_is_not_asked(served: Served, issuer: str) -> None:
    async with served(oidc_issuer=f"{issuer}/") as client:
        await refused(client, PATH)


async def test_a_provider_that_is_away_leaves_the_other_ways_in(served: Served) -> None:
    async with served(oidc_issuer="http://127.0.0.1:9") as client:
        await refused(client, PATH)
        page = await (await client.get("/")).text()
        assert "Sign in with your organisation" in page and "firsttoken link" in page


class Troubled:
    """A provider that has an outage, or accepts no code; it counts who asks."""

    def __init__(self) -> None:
        self.is_away = False
        self.discoveries = self.codes = self.at_once = self.at_once_max = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.get("/.well-known/openid-configuration", self.discover), web.post("/token", self.token)])
        return app

    async def discover(self, request: web.Request) -> web.Response:
        self.discoveries += 1
        if self.is_away:
            raise web.HTTPServiceUnavailable
        origin = str(request.url.origin())
        named = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/jwks"}
        return web.json_response({"issuer": origin, **{name: origin + path for name, path in named.items()}})

    async def token(self, _: web.Request) -> web.Response:
        self.codes += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        await asyncio.sleep(0)  # whoever is let in beside this one asks now
        self.at_once -= 1
        return web.json_response({"error": "invalid_grant"}, status=400)


@asynccontextmanager
async def troubled() -> AsyncIterator[tuple[Troubled, str]]:
    provider = Troubled()
    async with TestServer(provider.app()) as server:
        yield provider, str(server.make_url("")).rstrip("/")


async def test_an_outage_of_the_provider_is_found_out_by_one_visitor_for_all(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with troubled() as (provider, url), served(oidc_issuer=url) as client:
        provider.is_away = True
        await asyncio.gather(*(client.get(PATH, allow_redirects=False) for _ in range(8)))
        await refused(client, PATH)
        assert provider.discoveries == 1
        provider.is_away = False
        monkeypatch.setattr(provider_module, "RETRY_S", 0.0)
        assert client.app is not None
        known = client.app[SERVICES].authenticator.provider
        assert known is not None
        known._ask_at = 0.0  # the pause is over
        left = await client.get(PATH, allow_redirects=False)
        assert left.headers["Location"].startswith(f"{url}/authorize?")


async def test_an_outage_in_later_hours_keeps_what_is_known(served: Served) -> None:
    async with troubled() as (provider, url), served(oidc_issuer=url) as client:
        await client.get(PATH, allow_redirects=False)
        assert client.app is not None
        known = client.app[SERVICES].authenticator.provider
        assert known is not None
        provider.is_away, known._ask_at = True, 0.0
        for _ in range(3):
            left = await client.get(PATH, allow_redirects=False)
            assert left.headers["Location"].startswith(f"{url}/authorize?")
        assert provider.discoveries == 2


async def test_an_address_with_many_wrong_codes_has_them_asked_about_one_after_the_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle_module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    async with troubled() as (provider, url), served(oidc_issuer=url) as client:
        left = await client.get(PATH, allow_redirects=False)
        state = parse_qs(urlsplit(left.headers["Location"]).query)["state"][0]
        address = f"{CALLBACK}?code=guessed&state={state}"
        for _ in range(FAILURES_MAX):
            await refused(client, address)
        provider.at_once_max = 0
        await asyncio.gather(*(client.get(address, allow_redirects=False) for _ in range(12)))
        assert provider.codes == FAILURES_MAX + 12
        assert provider.at_once_max == 1


async def test_without_a_provider_there_is_no_way_to_one(database: Database) -> None:
    async with serving(make_services(database)) as client:
        assert (await client.get(PATH, allow_redirects=False)).status == 404
        assert "has-organisation" not in await (await client.get("/")).text()
