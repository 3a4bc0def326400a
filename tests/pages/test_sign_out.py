"""Signing out ends the session and shows how to sign in again."""

from __future__ import annotations

from playwright.async_api import expect

from tests.pages.conftest import OpenPage
from tests.pages.scripted import ScriptedWorker


async def test_a_person_signs_out(open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]) -> None:
    page = await open_page(scripted.url)
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="You are not signed in")).to_be_visible()
    complaints.clear()  # the browser reports the page's own 401
