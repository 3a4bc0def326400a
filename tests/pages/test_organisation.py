"""A browser on its way to the provider of an organisation and back: two sites, as browsers see it."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from tests.pages.conftest import OpenPage, keep_screenshot
from tests.worker.auth.test_provider import Served, issuer, served

__all__ = ["issuer", "served"]


@pytest.mark.parametrize("place", ["/ops", "/#/c/conv_1"])
async def test_a_person_signs_in_at_the_organisation_and_is_where_they_wanted_to_be(
    served: Served, open_page: OpenPage, complaints: list[str], place: str
) -> None:
    async with served() as client:
        page = await open_page(str(client.make_url("/")).removesuffix("/") + place)
        await keep_screenshot(page, "sign-in-organisation")
        await page.get_by_role("link", name="Sign in with your organisation").click()
        await page.get_by_role("button", name="alice").click()
        await expect(page.get_by_role("button", name=re.compile("theme"))).to_be_visible()
        await expect(page).to_have_url(re.compile(f"{place}$"))  # although the cookie is for our own pages alone
        await page.goto(str(client.make_url("/")))
        await expect(page.locator("#question")).to_be_visible()
        await expect(page).to_have_url(re.compile("/$"))  # once
        await page.close()
    complaints.clear()  # the harness has no engine to ask
