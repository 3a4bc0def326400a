"""A person's way through the pages, against the real worker with the bundled models and the sample documents."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, Page, StorageState, expect

from tests.pages.conftest import PHONE, USUAL, OpenPage, Window, Windows, begin, keep_screenshot

# Questions that the bundled model is known to answer, greedily and as the first of a conversation.
SUM, SUM_ANSWER = "What is 127 * 49?", "6223"
DOCUMENTED, DOCUMENTED_ANSWER = "How long are traces kept?", "seven days"
TWO_CLOCKS = "What time is it in Tokyo and what time is it in Paris?"

# Notes in which order the parts of an answer appear.
WATCH = """() => {
  window.appeared = [];
  new MutationObserver(() => {
    for (const part of ["source-card", "prose", "timing"]) {
      if (!window.appeared.includes(part) && document.querySelector(`.${part}`)) window.appeared.push(part);
    }
  }).observe(document.body, { childList: true, subtree: true });
}"""


@pytest.fixture(scope="session")
async def session(browser: Browser, server: dict[str, Any]) -> StorageState:
    """A browser's cookies after it followed the sign-in link that the worker printed."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(server["chat_url"])
    await expect(page.locator("#question")).to_be_visible()
    assert page.url == f"{server['url']}/"  # the link's secret does not stay in the address
    state = await context.storage_state()
    await context.close()
    return state


@pytest.fixture(scope="module")
async def window(windows: Windows, session: StorageState) -> AsyncIterator[Window]:
    window = await windows.take({**USUAL, "storage_state": session})
    yield window
    await window.page.context.close()


@pytest.fixture
async def chat(window: Window, server: dict[str, Any], complaints: list[str]) -> AsyncIterator[Page]:
    window.complaints = complaints
    await begin(window.page, server["url"])
    await expect(window.page.locator("#use-documents")).to_be_enabled()
    yield window.page
    assert complaints == []


async def ask(page: Page, question: str) -> None:
    await page.locator("#question").fill(question)
    await page.locator("#question").press("Enter")
    await expect(page.locator(".timing")).to_be_visible(timeout=30_000)


async def test_without_the_link_the_page_says_how_to_sign_in(
    open_page: OpenPage, server: dict[str, Any], complaints: list[str]
) -> None:
    page = await open_page(server["url"])
    await expect(page.get_by_role("heading", name="You are not signed in")).to_be_visible()
    await keep_screenshot(page, "sign-in")
    assert all("401" in text for text in complaints)
    complaints.clear()


async def test_a_sum_shows_its_tool_step_and_its_timing(chat: Page) -> None:
    await ask(chat, SUM)
    step = chat.locator(".step[data-tool=calculator]")
    await expect(step).to_contain_text("127 * 49")
    await expect(step.locator(".step-result")).to_have_text(SUM_ANSWER)
    await expect(step.locator(".step-time")).to_have_text(re.compile(r"ms$"))
    await expect(chat.locator(".prose").last).to_contain_text(SUM_ANSWER)
    await chat.locator(".timing > summary").click()
    names = set(await chat.locator(".legend [data-name]").evaluate_all("(rows) => rows.map((row) => row.dataset.name)"))
    assert names >= {"edge", "auth", "hydrate", "assemble", "tokenize", "queue", "prefill", "decode", "flush"}
    await keep_screenshot(chat, "chat-tool-light")


async def test_two_calls_of_one_step_are_two_rows(chat: Page) -> None:
    await ask(chat, TWO_CLOCKS)
    await expect(chat.locator(".step[data-tool=current_time][data-state=done]")).to_have_count(2)


async def test_sources_appear_before_the_answer_and_a_citation_opens_its_source(chat: Page) -> None:
    await chat.evaluate(WATCH)
    await ask(chat, DOCUMENTED)
    assert await chat.evaluate("() => window.appeared") == ["source-card", "prose", "timing"]
    await expect(chat.locator(".prose")).to_contain_text(DOCUMENTED_ANSWER)
    await keep_screenshot(chat, "chat-sources-light")
    await chat.locator(".cite").first.click()
    await expect(chat.locator("#source mark").first).to_be_in_viewport()
    assert DOCUMENTED_ANSWER in await marked(chat)
    await keep_screenshot(chat, "chat-source-open")


async def test_reload_keeps_the_conversation_with_its_sources(chat: Page) -> None:
    await ask(chat, DOCUMENTED)
    title = await chat.locator(".source-title").first.inner_text()
    await chat.reload()
    await expect(chat.locator(".question p")).to_have_text(DOCUMENTED)
    await expect(chat.locator(".source-title").first).to_contain_text(title)
    await expect(chat.locator(".prose")).to_contain_text(DOCUMENTED_ANSWER)
    await chat.locator(".cite").first.click()
    await expect(chat.locator("#source mark").first).to_be_visible()
    assert DOCUMENTED_ANSWER in await marked(chat)


async def marked(chat: Page) -> str:
    """The cited words, which may have marks of Markdown between them."""
    return "".join(await chat.locator("#source mark").all_inner_texts())


async def test_what_was_read_while_the_person_typed_is_cached(chat: Page) -> None:
    async with chat.expect_response("**/v1/conversations/warm") as warmed:
        await chat.locator("#question").press_sequentially("H")
    answer = await warmed.value
    assert answer.status == 202 and (await answer.json())["object"] == "conversation.warm"
    await ask(chat, SUM)
    async with chat.expect_response("**/v1/conversations/conv_*/warm") as warmed:
        await chat.locator("#question").press_sequentially("H")
    assert (await warmed.value).status == 202


async def test_an_answer_leads_to_its_trace_and_waterfall(chat: Page) -> None:
    await ask(chat, SUM)
    await chat.locator(".timing > summary").click()
    await chat.get_by_role("link", name="Open the trace").click()
    waterfall = chat.locator(".waterfall")
    await expect(waterfall.locator("[data-lane=main] [data-name=prefill]").first).to_be_visible()
    await expect(waterfall.locator("[data-lane=tools] [data-name='tool:calculator']")).to_be_visible()
    await waterfall.locator("[data-name=prefill]").first.hover()
    await expect(chat.locator(".inspector")).to_contain_text("cached tokens")
    await keep_screenshot(chat, "ops-trace")


async def test_the_latency_page_sums_up_and_lists_what_was_asked(
    chat: Page, open_page: OpenPage, server: dict[str, Any], session: StorageState
) -> None:
    await ask(chat, SUM)
    trace_id = await chat.locator(".timing").get_attribute("data-trace")
    ops = await open_page(server["ops_url"], storage_state=session, color_scheme="dark")
    await expect(ops.locator("#spans")).to_contain_text("prefill")
    await expect(ops.locator(".tile").filter(has_text="First token")).to_contain_text(re.compile(r"\d ?m?s"))
    await expect(ops.locator(".tile").filter(has_text="Goodput")).to_contain_text(re.compile(r"\d+ of \d+ answers"))
    await expect(ops.locator(".surfaces tbody tr").filter(has_text="chat")).to_contain_text("500 ms")
    await keep_screenshot(ops, "ops-dark")
    await ops.locator(f"[data-trace='{trace_id}'] a").click()
    await expect(ops.locator(".waterfall")).to_be_visible()
    assert ops.url.endswith(f"#/trace/{trace_id}")


async def test_a_phone_shows_the_same_without_sideways_scroll(
    open_page: OpenPage, server: dict[str, Any], session: StorageState
) -> None:
    page = await open_page(server["url"], storage_state=session, color_scheme="dark", **PHONE)
    await expect(page.locator("#use-documents")).to_be_enabled()
    await keep_screenshot(page, "phone-empty-dark")
    await ask(page, DOCUMENTED)
    await keep_screenshot(page, "phone-answer-dark")
    assert await page.evaluate("() => document.documentElement.scrollWidth") == PHONE["viewport"]["width"]
    await page.goto(server["ops_url"])
    await expect(page.locator(".traces")).to_be_visible()
    assert await page.evaluate("() => document.documentElement.scrollWidth") == PHONE["viewport"]["width"]
    await keep_screenshot(page, "phone-ops-dark")


async def test_an_answer_made_again_leaves_the_first_one_to_go_back_to(chat: Page) -> None:
    await ask(chat, SUM)
    await chat.get_by_role("button", name="Edit").first.click()
    await chat.get_by_label("Edit the question").fill(TWO_CLOCKS)
    await chat.keyboard.press("Enter")
    await expect(chat.locator(".question p")).to_have_text(TWO_CLOCKS)
    await expect(chat.locator(".timing")).to_be_visible(timeout=30_000)
    await expect(chat.locator(".versions")).to_have_text("2 of 2")
    await keep_screenshot(chat, "chat-versions")
    await chat.get_by_role("button", name="Previous version").click()
    await expect(chat.locator(".question p")).to_have_text(SUM)
    await expect(chat.locator(".versions")).to_have_text("1 of 2")
    await chat.reload()
    await expect(chat.locator(".versions")).to_have_text("1 of 2")
    await expect(chat.locator(".prose").last).to_contain_text(SUM_ANSWER)


async def test_a_shared_conversation_is_read_by_somebody_who_is_not_signed_in(chat: Page, open_page: OpenPage) -> None:
    await ask(chat, SUM)
    await chat.get_by_role("button", name="More about this conversation").click()
    await chat.get_by_role("menuitem", name="Share").click()
    await chat.get_by_role("button", name="Create a link").click()
    visitor = await open_page(await chat.get_by_label("Link", exact=True).input_value())
    await expect(visitor.locator(".question")).to_have_text(SUM)
    await expect(visitor.locator(".prose")).to_contain_text(SUM_ANSWER)
    await keep_screenshot(visitor, "shared")
