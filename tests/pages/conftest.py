"""A headless Chromium, pages that fail the test when they complain, and a worker whose answers a test writes."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright, expect

from tests.pages.scripted import ScriptedWorker, hello, serving

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
NAMES = (
    "chromium-headless-shell",  # the same engine without the windows: a third less time for a test
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)  # as deploy/browser.sh looks for them
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMEOUT_MS = 15_000  # for what takes a moment, on a machine that does much else
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "is_mobile": True,
    "has_touch": True,
    "device_scale_factor": 2,
}

OpenPage: TypeAlias = Callable[..., Awaitable[Page]]


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    assert path is not None, "These tests need Chromium. deploy/browser.sh installs it or says how."
    expect.set_options(timeout=TIMEOUT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        await browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the pages wrote to the console as errors. A test that provokes some removes them."""
    return []


@pytest.fixture
def contexts() -> list[BrowserContext]:
    """The browser profiles of a test."""
    return []


def listen(page: Page, complaints: list[str]) -> None:
    def hear(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(message.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(str(error)))


@pytest.fixture
async def open_page(browser: Browser, complaints: list[str], contexts: list[BrowserContext]) -> AsyncIterator[OpenPage]:
    """Opens an address in a browser profile of its own; options are those of a playwright context."""

    async def open_page(url: str, **options: Any) -> Page:
        context = await browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = await context.new_page()
        listen(page, complaints)
        await page.goto(url)
        return page

    yield open_page
    for context in contexts:
        await context.close()
    assert complaints == []


@pytest.fixture
async def scripted(contexts: list[BrowserContext]) -> AsyncIterator[ScriptedWorker]:
    """A worker that answers "Hello." until a test gives it another script. Its pages end before it does."""
    async with serving(ScriptedWorker(hello)) as worker:
        yield worker
        for context in contexts:
            await context.close()


async def ask(page: Page, question: str) -> None:
    await page.locator("#question").fill(question)
    await page.locator("#question").press("Enter")


async def keep_screenshot(page: Page, name: str) -> None:
    """Kept in artifacts/ for people to look at after a run."""
    ARTIFACTS.mkdir(exist_ok=True)
    await page.screenshot(path=ARTIFACTS / f"{name}.png")
