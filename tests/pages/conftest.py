"""A headless Chromium, pages that fail the test when they complain, and a worker whose answers a test writes."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urljoin

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect
from playwright.async_api import Error as PlaywrightError

from tests.pages.scripted import ScriptedWorker, hello, serving

SCREENSHOTS = Path(__file__).parents[2] / "artifacts" / "pages"
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

USUAL: dict[str, Any] = {"viewport": {"width": 1280, "height": 860}}

# What the page of a test keeps, and what lies on top of it.
LEAVE = "() => { localStorage.clear(); document.querySelectorAll('dialog[open]').forEach((each) => each.close()); }"

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


class Window:
    """A page in a browser profile of its own."""

    def __init__(self, page: Page, options: str) -> None:
        self.page, self.options = page, options
        self.complaints: list[str] = []  # of whoever has it
        self.own = False
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    async def clear(self) -> bool:
        """Remove what a test has left in it. Whether that is all of it."""
        if self.own or self.page.is_closed() or self.page.context.pages != [self.page]:
            return False
        self.complaints = []  # of nobody: there is nothing where it goes
        try:
            await self.page.unroute_all()
            await self.page.goto(urljoin(self.page.url, "/nothing"))
            await self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
            await self.page.emulate_media(color_scheme="null")
            await self.page.context.clear_cookies()
        except PlaywrightError:  # where it was, nobody answers
            return False
        return True


class Windows:
    """Those of all tests: a page is loaded in two fifths of the time where another test has had it before."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: dict[str, list[Window]] = {}

    async def take(self, options: dict[str, Any]) -> Window:
        """One with these options of a playwright context."""
        key = json.dumps(options, sort_keys=True)
        if free := self._free.get(key):
            window = free.pop()
            await window.page.set_viewport_size(options["viewport"])
            return window
        context = await self._browser.new_context(**options)
        context.set_default_timeout(TIMEOUT_MS)
        return Window(await context.new_page(), key)

    async def take_back(self, opened: list[Window]) -> None:
        while opened:
            window = opened.pop()
            if await window.clear():
                self._free.setdefault(window.options, []).append(window)
            else:
                await window.page.context.close()


@pytest.fixture(scope="session")
def windows(browser: Browser) -> Windows:
    return Windows(browser)


@pytest.fixture
def opened() -> list[Window]:
    """The windows of a test."""
    return []


@pytest.fixture
async def open_page(windows: Windows, complaints: list[str], opened: list[Window]) -> AsyncIterator[OpenPage]:
    """Opens an address in a browser profile that knows nothing; options are those of a playwright context. `own`: it is
    changed in ways that `Window.clear` does not know."""

    async def open_page(url: str, *, own: bool = False, **options: Any) -> Page:
        window = await windows.take({**USUAL, **options})
        window.complaints, window.own = complaints, own or "storage_state" in options  # which `clear` removes
        opened.append(window)
        await window.page.goto(url)
        return window.page

    yield open_page
    await windows.take_back(opened)
    assert complaints == []


@pytest.fixture(scope="session")
def place() -> Iterator[socket.socket]:
    """Where the scripted workers serve, one after the other: to a browser they are one."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        yield place


@pytest.fixture
async def scripted(windows: Windows, opened: list[Window], place: socket.socket) -> AsyncIterator[ScriptedWorker]:
    """A worker that answers "Hello." until a test gives it another script. Its pages end before it does."""
    async with serving(ScriptedWorker(hello), place) as worker:
        yield worker
        await windows.take_back(opened)


async def begin(page: Page, url: str) -> None:
    """A new conversation, where a page may stand open."""
    if page.url.partition("#")[0] != f"{url}/":
        await page.goto(url)
        return
    await page.unroute_all()
    await page.evaluate(LEAVE)
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator(".turn")).to_have_count(0)


@pytest.fixture(scope="module")
async def kept(windows: Windows) -> AsyncIterator[tuple[ScriptedWorker, Window]]:
    """A worker and its open page, for all tests of a file that need no more than a new conversation."""
    async with serving(ScriptedWorker(hello)) as worker:
        window = await windows.take(USUAL)
        yield worker, window
        await windows.take_back([window])


@pytest.fixture
def worker(kept: tuple[ScriptedWorker, Window]) -> ScriptedWorker:
    """As `scripted` is, but for the conversations that the open page knows."""
    worker, _ = kept
    fresh = ScriptedWorker(hello, url=worker.url, conversations=worker.conversations)
    for each in fields(worker):
        setattr(worker, each.name, getattr(fresh, each.name))
    return worker


@pytest.fixture
async def page(
    kept: tuple[ScriptedWorker, Window], worker: ScriptedWorker, complaints: list[str], request: pytest.FixtureRequest
) -> AsyncIterator[Page]:
    """A new conversation in the open page: to load one for each test takes as long again as most tests."""
    _, window = kept
    page, failed = window.page, request.session.testsfailed
    window.complaints = complaints
    await begin(page, worker.url)
    yield page
    assert complaints == []
    if request.session.testsfailed > failed:  # who knows where it is
        await page.goto("about:blank")


async def ask(page: Page, question: str) -> None:
    await page.locator("#question").fill(question)
    await page.locator("#question").press("Enter")


async def keep_screenshot(page: Page, name: str) -> None:
    """For people to look at, where they have made the folder artifacts/pages: each takes a fifth of a second."""
    if SCREENSHOTS.is_dir():
        await page.screenshot(path=SCREENSHOTS / f"{name}.png")
