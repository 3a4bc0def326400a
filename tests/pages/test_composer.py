"""Asking: the keyboard, the options, the theme, the phone."""

from __future__ import annotations

from playwright.async_api import expect

from tests.pages.conftest import PHONE, OpenPage, ask
from tests.pages.scripted import TRACE, ScriptedWorker, Stream


async def test_a_question_asks_for_documents_and_tools_unless_switched_off(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    page = await open_page(scripted.url)
    await expect(page.locator("#use-documents")).to_be_enabled()
    await ask(page, "With everything")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await page.locator("#use-documents").click()
    await page.locator("#use-tools").click()
    await ask(page, "With nothing")
    await expect(page.locator(".prose")).to_have_count(2)
    first, second = scripted.turns
    assert [tool["type"] for tool in first["tools"]] == [
        "file_search",
        "firsttoken:calculator",
        "firsttoken:current_time",
        "firsttoken:convert_units",
    ]
    assert first["tools"][0]["vector_store_ids"] == ["vs_1"]
    assert second["tools"] == []
    assert first["conversation"] == second["conversation"] == "conv_1"


async def test_the_model_is_told_once_that_somebody_is_about_to_ask(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    page = await open_page(scripted.url)
    question = page.locator("#question")
    await expect(page.locator("#use-documents")).to_be_enabled()
    await question.focus()
    await question.press_sequentially("Hello?")
    await question.press("Enter")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await question.press_sequentially("And")
    await expect(question).to_have_value("And")
    await ask(page, "And now?")
    await expect(page.locator(".prose")).to_have_count(2)
    assert [place for place, _ in scripted.warmed] == [None, "conv_1"]
    assert [tools for _, tools in scripted.warmed] == [turn["tools"] for turn in scripted.turns]


async def test_shift_enter_breaks_the_line_and_examples_ask_at_once(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    page = await open_page(scripted.url)
    question = page.locator("#question")
    await question.fill("one")
    await question.press("Shift+Enter")
    await question.type("two")
    await expect(question).to_have_value("one\ntwo")
    assert scripted.turns == []
    await page.locator("[data-example]").first.click()
    await expect(page.locator(".prose")).to_have_text("Hello.")


async def test_a_phone_shows_no_sideways_scroll_and_a_drawer(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    async def wide(stream: Stream) -> None:
        text = (
            "word" * 60
            + "\n\n```\n"
            + "x" * 300
            + "\n```\n\n| "
            + " | ".join("abcdefghij")
            + " |\n"
            + "|--" * 10
            + "|\n"
        )
        await stream.sources()
        await stream.begin_text()
        await stream.text(text)
        await stream.end_text(text)
        await stream.send("firsttoken:trace", trace=TRACE)
        await stream.complete()

    scripted.script = wide
    page = await open_page(scripted.url, **PHONE)
    await expect(page.locator("#sidebar")).not_to_be_in_viewport()
    await ask(page, "w" * 120)
    await expect(page.locator(".timing")).to_be_visible()
    overflowing = (
        "() => [document.documentElement, document.querySelector('#view')].map((n) => n.scrollWidth - n.clientWidth)"
    )
    assert await page.evaluate(overflowing) == [0, 0]
    assert await page.locator("#question").evaluate("(node) => parseFloat(getComputedStyle(node).fontSize)") >= 16
    await page.get_by_role("button", name="Open the list of conversations").click()
    await expect(page.get_by_role("link", name="wwww")).to_be_in_viewport()
    await page.keyboard.press("Escape")
    await expect(page.locator("#sidebar")).not_to_be_in_viewport()


async def test_the_chosen_theme_is_remembered(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url, color_scheme="light")
    await page.get_by_role("button", name="Use the dark theme").click()
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
