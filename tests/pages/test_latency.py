"""The latency page over answers of a known past: it shows true numbers, and what is unusual about a slow one."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import pytest
from playwright.async_api import Page, Route, expect

from migrations.pool import Database
from tests.conftest import Owner, new_tenant
from tests.pages.conftest import PHONE, USUAL, OpenPage, Window, Windows, keep_screenshot
from tests.pages.past import answer, remember, say, with_tool
from tests.worker.harness import SECRET, make_services, serving
from worker.auth.keys import Keys
from worker.auth.scope import USUAL as USUAL_SCOPES
from worker.auth.scope import Scope
from worker.runs.record import TurnRecord
from worker.telemetry.telemetry import Traces

QUESTION = "How many screws fit into the blue crate?"
REFRESH_MS = 5_000  # see worker/static/ops/main.js


@dataclass(frozen=True)
class Latency:
    """A worker with a past, and how a browser of the tenant reaches it."""

    url: str
    options: dict[str, Any]
    slow: TurnRecord
    failed: TurnRecord


@asynccontextmanager
async def past_of(database: Database, owner_dsn: str, tenant_id: UUID) -> AsyncIterator[Latency]:
    traces, owner = Traces(database), await asyncpg.connect(owner_dsn)
    usual = [answer(tenant_id, age_s=100 + 20 * n, number=n) for n in range(60)]
    slow = with_tool(answer(tenant_id, age_s=90, number=70, queue=800))
    failed = with_tool(answer(tenant_id, age_s=3000, number=71), failed=True)
    await remember(traces, tenant_id, *usual, slow, failed)
    await say(owner, slow, QUESTION, ("calculator", '{"expression": "6*7"}', "42"))
    await owner.close()
    _, key = await Keys(database, SECRET).create(tenant_id, "browser", scopes=USUAL_SCOPES)
    async with serving(make_services(database)) as client:
        options = {"extra_http_headers": {"Authorization": f"Bearer {key}"}}
        yield Latency(str(client.make_url("/ops")), options, slow, failed)


@pytest.fixture(scope="module")
async def latency(database: Database, owner_dsn: str, owner_pool: Owner) -> AsyncIterator[Latency]:
    """For tests that only look."""
    async with past_of(database, owner_dsn, await new_tenant(owner_pool)) as latency:
        yield latency


@pytest.fixture
async def own_latency(database: Database, owner_dsn: str, tenant_id: UUID) -> AsyncIterator[Latency]:
    """For a test that adds answers."""
    async with past_of(database, owner_dsn, tenant_id) as latency:
        yield latency


Look: TypeAlias = Callable[[str], Awaitable[Page]]


@pytest.fixture(scope="module")
async def window(windows: Windows, latency: Latency) -> AsyncIterator[Window]:
    window = await windows.take({**USUAL, **latency.options})
    yield window
    await windows.take_back([window])


@pytest.fixture
async def look(window: Window, latency: Latency, complaints: list[str]) -> AsyncIterator[Look]:
    """Goes to a place in the open page, for tests that only look."""

    async def look(place: str) -> Page:
        window.complaints = complaints
        await window.page.goto(f"{latency.url}#/{place}")
        return window.page

    yield look
    assert complaints == []


def rows(page: Page) -> Any:
    return page.locator(".traces li")


async def test_the_axis_of_time_reads_as_the_browser_writes_times(open_page: OpenPage, latency: Latency) -> None:
    noon = 1_795_519_800  # 2026-11-24, 12:30 in Berlin
    labels = """async ([url, from, step]) => {
      const { ticks } = await import(url);
      return ticks([0, 1, 2].map((n) => from + n * step), step);
    }"""
    page = await open_page(latency.url, **latency.options, locale="de-DE", timezone_id="Europe/Berlin")
    module = await page.evaluate(
        "performance.getEntriesByType('resource').find(({ name }) => name.includes('shared/format.js')).name"
    )
    hours, days, seconds = [await page.evaluate(labels, [module, noon, step]) for step in (6 * 3600, 86_400, 15)]
    assert hours == ["12:30\n24. Nov.", "18:30", "00:30\n25. Nov."]
    assert days == ["24. Nov.", "25. Nov.", "26. Nov."]
    assert seconds == ["12:30:00\n24. Nov.", "12:30:15", "12:30:30"]
    await expect(page.locator(".tile-detail").nth(1)).to_have_text("1 failed")


async def test_times_have_no_zero_in_front_where_nobody_writes_one(open_page: OpenPage, latency: Latency) -> None:
    page = await open_page(latency.url, **latency.options, locale="en-US", timezone_id="Europe/Berlin")
    await expect(page.locator(".trace-when").first).to_have_text(re.compile(r"(^|, )[1-9]\d?:\d\d:\d\d\s[AP]M$"))
    module = await page.evaluate(
        "performance.getEntriesByType('resource').find(({ name }) => name.includes('shared/format.js')).name"
    )
    labels = "async ([url, at]) => (await import(url)).ticks([at, at + 21600], 21600)"
    evening = await page.evaluate(labels, [module, 1_795_519_800])
    assert [re.sub(r"\s", " ", label) for label in evening] == ["12:30 PM Nov 24", "6:30 PM"]


async def test_a_row_says_what_was_asked_and_what_took_unusually_long(latency: Latency, look: Look) -> None:
    page = await look("")
    slow = page.locator(f"[data-trace='{latency.slow.id}']")
    await expect(slow).to_contain_text(QUESTION)
    await expect(slow.locator(".trace-cause")).to_have_text(
        re.compile(r"waiting for a free slot: 800 ms, usually 4\.\d")
    )
    await expect(slow.locator(".status")).to_have_text("late")
    await expect(rows(page)).to_have_count(25)
    await page.get_by_role("button", name="Show more").click()
    await expect(rows(page)).to_have_count(50)
    await expect(page.locator(".chart canvas")).to_be_visible()
    await keep_screenshot(page, "latency")


async def test_filters_search_and_order_live_in_the_address(latency: Latency, open_page: OpenPage) -> None:
    page = await open_page(latency.url, **latency.options)
    await page.locator("#order").select_option("slowest")
    await expect(rows(page).first).to_have_attribute("data-trace", latency.slow.id)
    await page.locator("#status").select_option("failed")
    await expect(rows(page)).to_have_count(1)
    await page.reload()
    await expect(rows(page)).to_have_count(1)
    await expect(page.locator("#status")).to_have_value("failed")
    await page.locator("#status").select_option("")
    await page.locator("#q").fill(str(latency.slow.response_id))
    await expect(rows(page)).to_have_count(1)
    await expect(rows(page).first).to_contain_text(QUESTION)


async def test_an_answer_to_an_older_question_never_replaces_a_newer_one(look: Look) -> None:
    page = await look("")
    await expect(rows(page)).not_to_have_count(0)
    released = asyncio.Event()

    async def hold(route: Route) -> None:
        if "window_s=604800" in route.request.url:
            await released.wait()
        await route.continue_()

    await page.route("**/ops/api/**", hold)
    await page.get_by_role("radio", name="7 days").check()
    await expect(page.locator("#overview")).to_have_class(re.compile("is-loading"))
    await page.get_by_role("radio", name="15 min").check()
    fewer = re.compile(r"^[34]\d$")  # of 62
    await expect(page.locator(".tile-value").nth(1)).to_have_text(fewer)
    released.set()
    await expect(page.locator("#overview")).not_to_have_class(re.compile("is-loading"))
    await expect(page.locator(".tile-value").nth(1)).to_have_text(fewer)
    await page.unroute_all(behavior="wait")


async def test_a_late_answer_is_a_dot_and_a_stretch_can_be_looked_at(latency: Latency, open_page: OpenPage) -> None:
    page = await open_page(f"{latency.url}?window=900", **latency.options)
    await expect(page.locator(".chart-legend")).to_contain_text("late answer")
    over = page.locator(".u-over")
    box = await over.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    await page.mouse.up()
    await expect(page).to_have_url(re.compile(r"start=\d+&end=\d+"))
    await expect(rows(page)).not_to_have_count(25)
    await page.go_back()
    await expect(page).not_to_have_url(re.compile(r"start="))
    await expect(rows(page)).not_to_have_count(0)


async def test_a_trace_says_first_what_was_unusual_and_keeps_the_span_that_was_clicked(
    latency: Latency, look: Look
) -> None:
    page = await look(f"trace/{latency.slow.id}")
    await expect(page.locator(".trace-head h2")).to_have_text(QUESTION)
    await expect(page.locator(".why").first).to_contain_text("Waiting for a free slot took 800 ms, usually")
    await expect(page.locator("[data-lane=main] [data-name=edge]")).to_have_count(1)
    await expect(page.locator("[data-name=queue]")).to_have_class(re.compile("is-critical"))
    tool = page.locator("[data-name='tool:calculator']")
    await tool.click()
    await expect(page.locator(".inspector")).to_contain_text('"expression": "6*7"')
    await page.locator("[data-name=queue]").hover()
    await expect(page.locator(".inspector h3")).to_have_text("tool:calculator")
    await page.get_by_role("button", name="Close").click()
    await page.locator("[data-name=queue]").hover()
    await expect(page.locator(".inspector h3")).to_have_text("queue")
    await keep_screenshot(page, "latency-trace")


async def test_the_engine_tells_what_it_read_and_wrote_and_in_what_company(latency: Latency, look: Look) -> None:
    page = await look(f"trace/{latency.slow.id}")
    told = page.locator("[data-lane=engine] .engine-told")
    await expect(told).to_have_count(2)
    await expect(told.first).to_contain_text("read 40 new tokens in 1 chunk, 900 cached, batch of 3")
    await expect(told.first).to_contain_text("wrote 60 tokens in 39 steps, 21 of 30 drafted accepted, batch of 2.4")
    await expect(told.last).to_contain_text("wrote 20 tokens in 20 steps, batch of 1")


async def test_a_failure_stands_before_the_numbers(latency: Latency, look: Look) -> None:
    page = await look(f"trace/{latency.failed.id}")
    await expect(page.locator(".failures")).to_contain_text("Running the tool calculator failed with TimeoutError")


async def test_what_answers_cost_stands_beside_how_fast_they_began(look: Look) -> None:
    page = await look("")
    board = page.locator("#by-cost")
    await expect(board.locator("tbody tr")).to_have_count(1)
    await expect(board.locator("circle")).to_have_count(1)
    await expect(board.locator("tbody")).to_contain_text("demo-chat")


async def test_a_trace_that_is_gone_says_so_and_leads_back(look: Look, complaints: list[str]) -> None:
    page = await look(f"trace/{'0' * 32}")
    await expect(page.locator("#warning")).to_contain_text("does not exist")
    await expect(page.locator("#trace")).not_to_contain_text("Opening")
    assert all("404" in text for text in complaints)
    complaints.clear()


async def test_from_trace_to_trace_as_in_the_list(latency: Latency, look: Look) -> None:
    page = await look("")
    await rows(page).first.locator("a").click()
    await expect(page.locator(".waterfall")).to_be_visible()
    await page.keyboard.press("j")
    await expect(page).not_to_have_url(re.compile(str(latency.slow.id)))
    await page.keyboard.press("k")
    await expect(page).to_have_url(re.compile(str(latency.slow.id)))


async def test_no_table_is_cut(latency: Latency, open_page: OpenPage) -> None:
    page = await open_page(latency.url, **latency.options)
    await expect(page.locator("#by-cost tbody tr")).to_have_count(1)
    await expect(page.locator(".surfaces tbody tr").first).to_be_visible()
    await page.locator(".trace-when").first.evaluate("(node) => { node.textContent = 'Nov 27, 11:59:59 PM'; }")
    cut = "nodes => nodes.filter(node => node.scrollWidth > node.clientWidth).map(node => node.className)"
    for width in (1280, 390):
        assert await page.locator(".trace-when").evaluate_all(cut) == []
        await page.set_viewport_size({"width": width, "height": 844})
        assert await page.locator(".scroll").evaluate_all(cut) == []


async def test_a_phone_shows_it_without_sideways_scroll(latency: Latency, open_page: OpenPage) -> None:
    page = await open_page(latency.url, **{**PHONE, **latency.options, "viewport": {"width": 320, "height": 740}})
    for address, shown in ((latency.url, ".traces"), (f"{latency.url}#/trace/{latency.slow.id}", ".waterfall")):
        await page.goto(address)
        await expect(page.locator(shown)).to_be_visible()
        assert await page.evaluate("() => document.documentElement.scrollWidth") == 320


async def test_operators_see_no_questions_of_others(
    latency: Latency, open_page: OpenPage, database: Database, other_tenant_id: UUID
) -> None:
    _, key = await Keys(database, SECRET).create(other_tenant_id, "operator", scopes=frozenset({Scope.OPS, Scope.CHAT}))
    options = {"extra_http_headers": {"Authorization": f"Bearer {key}"}}
    page = await open_page(f"{latency.url}?tenant={latency.slow.tenant_id}", **options)
    await expect(page.locator(f"[data-trace='{latency.slow.id}']")).to_be_visible()
    await expect(page.locator(".traces")).not_to_contain_text(QUESTION)
    await expect(page.locator("#tenant")).to_have_value(str(latency.slow.tenant_id))


async def test_two_answers_stand_beside_each_other_from_their_arrival_on(latency: Latency, look: Look) -> None:
    page = await look(f"trace/{latency.failed.id}")
    await page.get_by_role("button", name="Compare").click()
    await expect(page.locator("#choosing")).to_be_visible()
    await page.locator(f"[data-trace='{latency.slow.id}'] a").click()
    await expect(page).to_have_url(re.compile(f"#/compare/{latency.failed.id}/{latency.slow.id}$"))
    await expect(page.locator("#pair h2")).to_have_text(re.compile(r"^B took .* longer, mostly in queue\.$"))
    await expect(page.locator(".pair-table [data-name=queue] .meter")).to_have_class(re.compile("is-slower"))
    bars = page.locator(".pair-bar")
    first, second = [await bars.nth(n).bounding_box() for n in (0, 1)]
    assert first is not None and second is not None
    assert first["x"] == second["x"] and first["width"] < second["width"]
    await page.reload()
    await expect(page.locator("#pair h2")).to_contain_text("mostly in queue")
    await page.set_viewport_size({"width": 360, "height": 740})
    assert await page.locator("#pair .scroll").evaluate("(node) => node.scrollWidth - node.clientWidth") == 0
    await page.set_viewport_size({"width": 1280, "height": 860})
    await keep_screenshot(page, "latency-pair")


async def test_a_window_is_compared_with_the_one_before(
    own_latency: Latency, open_page: OpenPage, database: Database
) -> None:
    tenant = own_latency.slow.tenant_id
    slower = [answer(tenant, age_s=950 + 10 * n, number=300 + n, prefill=30.0 + n) for n in range(60)]
    await remember(Traces(database), tenant, *slower)
    page = await open_page(f"{own_latency.url}?window=900", **own_latency.options)
    await page.locator("#against").select_option("before")
    await expect(page.locator(".verdict")).to_contain_text("Slower: reading the prompt")
    await expect(page.locator(".comparison [data-name=prefill] .change")).to_have_class(re.compile("is-slower"))
    await expect(page.locator(".comparison [data-name=tokenize] .change")).to_have_class(re.compile("is-same"))
    await expect(page).to_have_url(re.compile("against=before"))
    await page.reload()
    await expect(page.locator(".verdict")).to_contain_text("Slower: reading the prompt")
    await keep_screenshot(page, "latency-comparison")
    await expect(page.locator(".comparison [data-name=prefill] small")).to_have_text(re.compile(r"^\S+ to \S+ ms$"))
    for width in (390, 360):
        await page.set_viewport_size({"width": width, "height": 740})
        assert await page.locator("#spans").evaluate("(node) => node.scrollWidth - node.clientWidth") == 0


async def test_answers_are_narrowed_by_key_cache_and_status_and_compared_with_others(
    own_latency: Latency, open_page: OpenPage, database: Database
) -> None:
    tenant = own_latency.slow.tenant_id
    missed = [replace(answer(tenant, age_s=200 + n, number=500 + n, prefill=400.0), key="key_app") for n in range(12)]
    for record in missed:
        record.trace.spans[6].attributes |= {"cached_tokens": 0, "new_tokens": 940}
    await remember(Traces(database), tenant, *missed, replace(answer(tenant, age_s=5, number=600), key="key_two"))
    page = await open_page(own_latency.url, **own_latency.options)
    await page.locator("#key").select_option("key_app")
    await expect(page.locator(".tile-value").nth(1)).to_have_text("12")
    await expect(rows(page)).to_have_count(12)
    await page.locator("#cache").select_option("miss")
    await page.locator("#status").select_option("completed")
    await expect(page).to_have_url(re.compile("key=key_app.*status=completed.*cache=miss"))
    await page.locator("#against").select_option("cache:hit")
    await expect(page.locator(".verdict")).to_contain_text("Too few answers")  # the key has no others
    await page.locator("#key").select_option("")
    await expect(page.locator(".verdict")).to_contain_text("Slower: reading the prompt (+")
    await expect(page.locator(".comparison thead")).to_contain_text("Not cached")
    await page.locator("#of").select_option("p95")
    await expect(page.locator(".comparison thead")).to_contain_text("95th percentile")
    await page.reload()
    await expect(page.locator(".comparison thead")).to_contain_text("95th percentile")
    await page.get_by_role("button", name="Show all").click()
    await expect(page.locator("#cache")).to_have_value("")


async def test_the_chart_is_moved_and_zoomed_out(latency: Latency, open_page: OpenPage) -> None:
    page = await open_page(f"{latency.url}?window=900", **latency.options)
    await expect(page.locator(".chart canvas")).to_be_visible()
    await page.get_by_role("button", name="Earlier").click()
    await expect(page).to_have_url(re.compile(r"start=\d+&end=\d+"))
    first = await stretch(page)
    assert 900 <= first[1] - first[0] <= 1020
    await page.get_by_role("button", name="Zoom out").click()
    await expect(page).not_to_have_url(re.compile(f"start={first[0]}"))
    wider = await stretch(page)
    assert wider[1] - wider[0] == pytest.approx(2 * (first[1] - first[0]), abs=130)


async def stretch(page: Page) -> tuple[int, int]:
    found = re.search(r"start=(\d+)&end=(\d+)", page.url)
    assert found is not None
    return int(found[1]), int(found[2])


async def test_newer_answers_leave_the_selection_in_the_list_alone(
    own_latency: Latency, open_page: OpenPage, database: Database
) -> None:
    page = await open_page(own_latency.url, own=True, **own_latency.options)
    await page.clock.install()
    await page.reload()
    marked = page.locator(f"[data-trace='{own_latency.slow.id}'] .trace-what")
    await marked.evaluate("(node) => getSelection().selectAllChildren(node)")
    newer = answer(own_latency.slow.tenant_id, age_s=1, number=400)
    await remember(Traces(database), own_latency.slow.tenant_id, newer)
    await page.clock.run_for(REFRESH_MS)
    await expect(page.locator(f"[data-trace='{newer.id}']")).to_be_visible()
    assert await page.evaluate("() => getSelection().toString()") == QUESTION


async def test_a_trace_is_had_as_a_collector_takes_it(latency: Latency, look: Look) -> None:
    page = await look(f"trace/{latency.slow.id}")
    href = await page.get_by_role("link", name="OTLP").get_attribute("href")
    answered = await page.request.get(f"{latency.url.removesuffix('/ops')}{href}")
    [resource] = (await answered.json())["resourceSpans"]
    spans = resource["scopeSpans"][0]["spans"]
    assert {span["traceId"] for span in spans} == {latency.slow.trace.id}
    assert QUESTION not in await answered.text()


async def test_charts_are_offered_for_what_was_counted(look: Look) -> None:
    page = await look("")
    charts = page.locator("#charts")
    await expect(charts.get_by_role("radio", name="Drafts")).to_have_count(1)
    await expect(charts.get_by_role("radio", name="Cache misses")).to_have_count(0)
    await expect(charts.get_by_role("radio", name="KV cache")).to_have_count(0)
    await charts.get_by_role("radio", name="Burn rate").check(force=True)
    await expect(page.locator(".chart-legend")).to_contain_text("late answers, of those allowed")
    await expect(page).to_have_url(re.compile("chart=burn"))


async def test_a_session_that_ended_leads_to_signing_in_and_is_asked_for_no_more_numbers(
    open_page: OpenPage, latency: Latency, complaints: list[str]
) -> None:
    asked: list[str] = []

    async def refuse(route: Route) -> None:
        asked.append(route.request.url)
        await route.fulfill(status=401, json={"error": {"message": "Invalid credentials."}})

    page = await open_page(latency.url, own=True, **latency.options)
    await page.clock.install()
    await page.route("**/ops/api/**", refuse)
    await page.reload()
    await expect(page.locator("#warning")).to_contain_text("You are signed out.")
    await expect(page.locator("#warning").get_by_role("button", name="Sign in")).to_be_visible()
    await page.wait_for_function("() => document.querySelector('.is-loading') === null")
    count = len(asked)
    await page.clock.run_for(60_000)
    await page.evaluate("() => fetch('/ops/api/summary')")  # what had been asked before would have come by now
    assert len(asked) == count + 1
    await page.unroute_all()
    await page.evaluate("() => dispatchEvent(new Event('focus'))")  # they have signed in elsewhere
    await expect(page.locator("#warning")).to_be_hidden()
    complaints.clear()


async def test_a_clock_that_is_slow_does_not_move_the_chart_into_the_past(
    open_page: OpenPage, latency: Latency
) -> None:
    page = await open_page(latency.url, own=True, **latency.options)
    await page.clock.set_system_time((time.time() - 6 * 3600) * 1000)
    await page.reload()
    await expect(page.locator(".chart canvas")).to_be_visible()
    await page.get_by_role("button", name="Zoom out").click()
    await page.wait_for_url(re.compile(r"end=\d+"))
    assert int(re.findall(r"end=(\d+)", page.url)[0]) > time.time() - 600
