"""Signing out: this browser, another one, and all of them."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.pages.conftest import OpenPage, keep_screenshot
from tests.pages.scripted import ScriptedWorker

LINUX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
PHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 Version/19.0 Mobile Safari/604.1"


def session(number: int, agent: str, **changes: Any) -> dict[str, Any]:
    times = {"created_at": 1_700_000_000, "last_used_at": 1_700_000_000, "expires_at": 1_900_000_000}
    facts = {"current": False, "own": True, "person": None, "address": "192.0.2.7", "agent": agent}
    return {"id": f"sess_{number}", "object": "session", **facts, **times, **changes}


@pytest.fixture
def worker(scripted: ScriptedWorker) -> ScriptedWorker:
    other = session(3, "curl/8", own=False, person="bob", last_used_at=None)
    scripted.sessions = [session(1, LINUX, current=True), session(2, PHONE), other]
    return scripted


async def choose(page: Page, entry: str) -> None:
    await page.get_by_role("button", name="Account").click()
    await page.get_by_role("menuitem", name=entry, exact=True).click()


async def test_a_person_signs_out(open_page: OpenPage, worker: ScriptedWorker, complaints: list[str]) -> None:
    page = await open_page(worker.url)
    await choose(page, "Sign out")
    await expect(page.get_by_role("heading", name="You are not signed in")).to_be_visible()
    complaints.clear()  # the browser reports the page's own 401


async def test_whoever_signs_in_next_finds_nothing_that_was_written_before(
    open_page: OpenPage, worker: ScriptedWorker, complaints: list[str]
) -> None:
    page = await open_page(worker.url)
    await page.locator("#question").fill("Something private")
    await page.evaluate("localStorage.setItem('firsttoken.theme', 'dark')")
    await choose(page, "Sign out")
    await expect(page.get_by_role("heading", name="You are not signed in")).to_be_visible()
    assert await page.evaluate("Object.entries(localStorage)") == [["firsttoken.theme", "dark"]]
    complaints.clear()


async def test_browsers_that_are_signed_in_are_told_and_one_of_them_is_signed_out(
    open_page: OpenPage, worker: ScriptedWorker
) -> None:
    page = await open_page(worker.url)
    await choose(page, "Signed-in browsers…")
    rows = page.locator("#sessions-list li")
    await expect(rows.nth(0)).to_contain_text("Firefox on LinuxThis browser · 192.0.2.7")
    await expect(rows.nth(1)).to_contain_text("Safari on iPhoneLast used Nov")
    await expect(rows.nth(2)).to_contain_text("Unknown browserbob · Signed in Nov")
    await keep_screenshot(page, "sessions")
    await page.get_by_role("button", name="Sign out Safari on iPhone").click()
    await expect(rows).to_have_count(2)
    assert worker.signed_in
    await expect(page.get_by_role("button", name="Sign out everywhere")).to_be_hidden()


async def test_a_person_signs_out_everywhere(
    open_page: OpenPage, worker: ScriptedWorker, complaints: list[str]
) -> None:
    page = await open_page(worker.url)
    await choose(page, "Signed-in browsers…")
    await page.get_by_role("button", name="Sign out everywhere").click()
    await expect(page.get_by_role("heading", name="You are not signed in")).to_be_visible()
    complaints.clear()
