"""How the pages and their files are served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import expect

from tests.pages.conftest import OpenPage
from tests.pages.scripted import ScriptedWorker
from worker.routes.pages import Assets


@pytest.fixture
async def client(scripted: ScriptedWorker) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(scripted.url, auto_decompress=False) as session:
        yield session


async def address_of(client: aiohttp.ClientSession, name: str) -> str:
    """The address by which the chat page asks for a file."""
    async with client.get("/", headers={"Accept-Encoding": "identity"}) as response:
        html = await response.text()
    return next(part for part in html.split('"') if part.startswith("/static/") and part.endswith(name))


async def test_files_have_versioned_addresses_that_browsers_keep_for_good(client: aiohttp.ClientSession) -> None:
    async with client.get(await address_of(client, "/chat/main.js")) as response:
        assert response.status == 200
        assert response.content_type == "text/javascript"
        assert "immutable" in response.headers["Cache-Control"]


async def test_an_address_of_another_release_finds_the_file_but_is_not_kept(client: aiohttp.ClientSession) -> None:
    async with client.get("/static/0123456789abcdef/css/base.css") as response:
        assert response.status == 200
        assert response.headers["Cache-Control"] == "no-cache"


async def test_a_page_names_all_its_modules_so_that_they_come_at_once(client: aiohttp.ClientSession) -> None:
    async with client.get("/ops") as response:
        links = response.headers["Link"].split(", ")
    assert any("/ops/waterfall.js>" in link for link in links)
    assert not any("/chat/" in link for link in links)
    for link in links:
        async with client.get(link[1 : link.index(">")]) as module:
            assert "immutable" in module.headers["Cache-Control"]


async def test_an_unchanged_page_is_not_sent_again(client: aiohttp.ClientSession) -> None:
    async with client.get("/") as first:
        etag = first.headers["ETag"]
    async with client.get("/", headers={"If-None-Match": etag}) as second:
        assert second.status == 304
        assert await second.read() == b""


async def test_text_goes_compressed_to_those_who_take_it(client: aiohttp.ClientSession) -> None:
    async with client.get("/", headers={"Accept-Encoding": "gzip"}) as response:
        assert response.headers["Content-Encoding"] == "gzip"
    async with client.get("/", headers={"Accept-Encoding": "identity"}) as response:
        assert "Content-Encoding" not in response.headers


@pytest.mark.parametrize("path", ["../worker/config.py", "%2e%2e/pages.py", "chat/", "no-such.js", "icon.svg/x"])
async def test_only_the_pages_own_files_are_served(client: aiohttp.ClientSession, path: str) -> None:
    async with client.get(f"/static/0123456789abcdef/{path}") as response:
        assert response.status == 404


async def test_pages_may_run_nothing_but_their_own_files(client: aiohttp.ClientSession) -> None:
    async with client.get("/") as response:
        policy = response.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", ["/", "/ops"])
async def test_without_a_session_the_pages_say_how_to_sign_in(
    scripted: ScriptedWorker, client: aiohttp.ClientSession, path: str
) -> None:
    scripted.signed_in = False
    async with client.get(path, headers={"Accept-Encoding": "identity"}) as response:
        assert response.status == 401
        assert response.headers["Cache-Control"] == "no-store"
        assert "firsttoken link" in await response.text()


def test_the_version_changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("a {}")
    (tmp_path / "b.js").write_text("1")
    before = Assets.read(tmp_path).version
    (tmp_path / "b.js").write_text("2")
    assert Assets.read(tmp_path).version != before


def test_pages_hold_no_inline_script_or_style() -> None:
    static = Path(__file__).parents[2] / "worker" / "static"
    for page in static.glob("*.html"):
        html = page.read_text()
        assert "<style" not in html
        assert " style=" not in html
        assert " onclick=" not in html
        assert html.count("<script") == html.count("<script src=") + html.count('<script type="module" src=')
    for script in static.rglob("*.js"):
        vendored = static / "vendor" in script.parents  # what these have of it, the policy refuses
        assert vendored or "innerHTML" not in script.read_text(), script


async def test_a_link_that_does_not_work_is_said_to(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    scripted.signed_in = False
    page = await open_page(scripted.url)
    await expect(page.locator("#link")).to_be_hidden()
    await page.goto(f"{scripted.url}/#link")
    await expect(page.locator("#link")).to_contain_text("already been used")
    complaints.clear()  # the status 401 of the page
