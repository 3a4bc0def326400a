"""What is on trial, on the latency page of an operator."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import AsyncMock
from uuid import UUID

from playwright.async_api import expect

from agents.definition import AgentRegistry, Definition
from migrations.pool import Database
from tests.pages.conftest import OpenPage, keep_screenshot
from tests.worker.harness import SECRET, make_services, serving
from worker.auth.audit import Actor
from worker.auth.keys import Keys
from worker.auth.scope import ALL, USUAL
from worker.telemetry.canaries import Canaries, CanaryStore
from worker.telemetry.trial import Answer, Proposal, State

ME = Actor("command", "tester")
ROSTER = AgentRegistry({"support": Definition(), "brief": Definition(instructions="Be brief.")})


async def test_an_operator_sees_both_kinds_of_answers_side_by_side(
    database: Database, tenant_id: UUID, open_page: OpenPage
) -> None:
    store = CanaryStore(database)
    name = f"brief-{tenant_id.hex[:6]}"
    canary = await store.start(Proposal(name, "support", "brief", 0.2), ME, tenant_id)
    try:
        answers = [Answer(bool(i % 2), False, i % 20 == 0, 200.0 + 150 * (i % 2), 20.0, 300) for i in range(60)]
        await store.add((canary.id, f"{number:016x}", each) for number, each in enumerate(answers))
        services = replace(make_services(database), agent_registry=ROSTER, canaries=Canaries(store, AsyncMock()))
        await services.canaries.sync()
        keys = Keys(database, SECRET)
        _, operator = await keys.create(tenant_id, "operator", scopes=ALL)
        _, usual = await keys.create(tenant_id, "usual", scopes=USUAL)
        async with serving(services) as client:
            url = str(client.make_url("/ops"))
            page = await open_page(url, extra_http_headers={"Authorization": f"Bearer {operator}"})
            trial = page.locator(".trial")
            await expect(trial).to_contain_text("brief answers 20% of the conversations of support.")
            await expect(trial).to_contain_text("Too early to tell")
            await expect(trial.locator("tr", has_text="First token")).to_contain_text("200 ms350 ms")
            await expect(trial.locator("tr", has_text="Conversations")).to_contain_text("3030")
            await trial.scroll_into_view_if_needed()
            await keep_screenshot(page, "trials")
            page = await open_page(url, extra_http_headers={"Authorization": f"Bearer {usual}"})
            await expect(page.locator("#tiles")).not_to_be_empty()
            await expect(page.locator("#on-trial")).to_be_hidden()
    finally:
        await store.change(name, State.RUNNING, State.ABORTED, "", ME, tenant_id)


async def test_an_operator_tries_an_agent_and_ends_the_trial_on_the_page(
    database: Database, tenant_id: UUID, open_page: OpenPage, complaints: list[str]
) -> None:
    async def auditor() -> UUID:
        return tenant_id

    store, name = CanaryStore(database), f"brief-{tenant_id.hex[:6]}"
    services = replace(make_services(database), agent_registry=ROSTER, canaries=Canaries(store, auditor))
    _, operator = await Keys(database, SECRET).create(tenant_id, "operator", scopes=ALL)
    try:
        async with serving(services) as client:
            url = str(client.make_url("/ops"))
            page = await open_page(url, extra_http_headers={"Authorization": f"Bearer {operator}"})
            await page.get_by_text("Try an agent on some conversations").click()
            await page.get_by_label("Conversations of").select_option("support")
            await page.get_by_label("Answered by").select_option("support")
            await page.get_by_label("Name of the trial").fill(name)
            await page.get_by_role("button", name="Start").click()
            await expect(page.get_by_role("alert").filter(has_text="the agent itself")).to_be_visible()
            complaints.clear()  # of the browser about the refusal
            await page.get_by_label("Answered by").select_option("brief")
            await page.get_by_label("Name of the trial").fill(name)
            await page.get_by_role("button", name="Start").click()
            trial = page.locator(".trial")
            await expect(trial).to_contain_text("brief answers 10% of the conversations of support.")
            await page.locator("#start-trial").scroll_into_view_if_needed()
            await keep_screenshot(page, "trial-started")
            await trial.get_by_role("button", name="Promote").click()
            await expect(trial).to_contain_text("brief answers all of the conversations of support.")
            await trial.get_by_role("button", name="End").click()
            await expect(trial).to_have_count(0)
        (canary,) = [each for each in await store.all() if each.name == name]
        assert canary.state is State.ABORTED
    finally:
        for canary in await store.live():
            await store.change(canary.name, canary.state, State.ABORTED, "", ME, tenant_id)
