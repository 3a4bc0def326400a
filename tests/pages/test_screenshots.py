"""The pictures of the documentation: `make screenshots` takes them of the real pages into docs/images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, StorageState, expect

from migrations.pool import Database
from tests.pages.conftest import PHONE, OpenPage
from tests.pages.past import a_week, remember
from tests.pages.test_latency import Latency, own_latency
from tests.pages.test_real_worker import DOCUMENTED, DOCUMENTED_ANSWER, ask, session
from worker.telemetry.telemetry import Traces

__all__ = ["own_latency", "session"]

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DESKTOP: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {**DESKTOP, "color_scheme": "light"},
    "dark": {**DESKTOP, "color_scheme": "dark"},
    "phone": {**PHONE, "color_scheme": "light"},
}

pytestmark = pytest.mark.screenshots


async def keep(page: Page, name: str) -> None:
    await page.mouse.move(0, 0)
    if await page.locator("#live").is_visible():
        await page.locator("#live").uncheck(force=True)  # nothing is dimmed while it is refreshed
    await expect(page.locator(".is-loading")).to_have_count(0)
    await page.evaluate("() => document.fonts.ready")
    await page.screenshot(path=IMAGES / f"{name}.png", animations="disabled")


@pytest.mark.parametrize("look", LOOKS)
async def test_chat(open_page: OpenPage, server: dict[str, Any], session: StorageState, look: str) -> None:
    page = await open_page(server["url"], storage_state=session, **LOOKS[look])
    await expect(page.locator("#use-documents")).to_be_enabled()
    await ask(page, DOCUMENTED)
    await expect(page.locator(".prose")).to_contain_text(DOCUMENTED_ANSWER)
    await page.locator(".timing > summary").click()
    await keep(page, f"chat-{look}")


@pytest.mark.parametrize("look", LOOKS)
async def test_latency(open_page: OpenPage, own_latency: Latency, database: Database, look: str) -> None:
    tenant_id = own_latency.slow.tenant_id
    await remember(Traces(database), tenant_id, *a_week(tenant_id))
    page = await open_page(f"{own_latency.url}?window=86400", **LOOKS[look], **own_latency.options)
    await expect(page.locator(".chart canvas")).to_be_visible()
    await expect(page.locator(".traces li")).to_have_count(25)
    await keep(page, f"latency-{look}")
    await page.goto(f"{own_latency.url}#/trace/{own_latency.slow.id}")
    await page.reload()
    await expect(page.locator(".waterfall")).to_be_visible()
    await keep(page, f"trace-{look}")
