"""What is on trial, on the latency page of an operator."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from playwright.async_api import expect

from agents.definition import Definition
from agents.roster import Roster
from migrations.pool import Database
from tests.pages.conftest import OpenPage, keep_screenshot
from tests.worker.harness import SECRET, make_services, serving
from worker.auth.audit import Actor
from worker.auth.keys import Keys
from worker.auth.scope import ALL, USUAL
from worker.canary.canaries import Canaries
from worker.canary.store import CanaryStore
from worker.canary.trial import State
from worker.canary.verdict import Answer

ME = Actor("command", "tester")
ROSTER = Roster({"support": Definition(), "brief": Definition(instructions="Be brief.")})


async def test_an_operator_sees_both_kinds_of_answers_side_by_side(
    database: Database, tenant_id: UUID, open_page: OpenPage
) -> None:
    store = CanaryStore(database)
    name = f"brief-{tenant_id.hex[:6]}"
    canary = await store.start(name, "support", "brief", 0.2, {}, ME, tenant_id)
    try:
        answers = [Answer(bool(i % 2), False, i % 20 == 0, 200.0 + 150 * (i % 2), 20.0, 300) for i in range(60)]
        await store.add((canary.id, f"{number:016x}", each) for number, each in enumerate(answers))
        services = replace(make_services(database), roster=ROSTER, canaries=Canaries(store))
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
