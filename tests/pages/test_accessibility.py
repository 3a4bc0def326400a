"""What axe finds wrong with the pages: nothing."""

from __future__ import annotations

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from tests.pages.conftest import PHONE, OpenPage, ask
from tests.pages.scripted import ScriptedWorker, Stream, hello_with_trace


async def check(page: Page) -> None:
    results = await Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_state_of_the_chat_page_has_a_violation(
    open_page: OpenPage, scripted: ScriptedWorker, scheme: str
) -> None:
    async def answer(stream: Stream) -> None:
        await stream.sources()
        await hello_with_trace(stream)

    scripted.script = answer
    page = await open_page(scripted.url, color_scheme=scheme, reduced_motion="reduce")
    await expect(page.locator("#use-documents")).to_be_enabled()
    await check(page)
    await ask(page, "Hello?")
    await expect(page.locator(".timing")).to_be_visible()
    await check(page)
    for button, opened in (("Search", "#palette"), ("Add documents", "#documents"), ("Settings of", "#settings")):
        await page.get_by_role("button", name=button).click()
        await expect(page.locator(opened)).to_be_visible()
        await check(page)
        await page.keyboard.press("Escape")


async def test_the_drawer_of_a_phone_has_no_violation(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url, **PHONE, reduced_motion="reduce")
    await page.get_by_role("button", name="Open the list of conversations").click()
    await check(page)
