"""Asking: the keyboard, the options, the theme, the phone."""

from __future__ import annotations

import pytest
from playwright.async_api import Request, expect

from tests.pages.conftest import PHONE, OpenPage, ask
from tests.pages.scripted import STORE, TRACE, ScriptedWorker, Stream, message


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


async def test_what_is_written_is_searched_for_when_the_keys_rest(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    def drafted(request: Request) -> bool:
        return "input" in (request.post_data or "")

    page = await open_page(scripted.url)
    async with page.expect_request(drafted):
        await page.locator("#question").fill("Which port? ")
    async with page.expect_request(lambda request: request.url.endswith("/warm") and not drafted(request)):
        await page.locator("#question").press_sequentially("I")  # what was begun for the draft is given up
    await ask(page, "Which port is it?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    assert scripted.drafts[0] == "Which port?"
    assert scripted.turns[0]["input"] == "Which port is it?"


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


@pytest.mark.parametrize("width", [390, 360, 320])
async def test_a_phone_keeps_send_in_sight_beside_a_long_store_name(
    open_page: OpenPage, scripted: ScriptedWorker, width: int
) -> None:
    scripted.stores = [
        {**STORE, "name": "The collected minutes of the committee for long names"},
        {**STORE, "id": "vs_2"},
    ]
    page = await open_page(scripted.url, **{**PHONE, "viewport": {"width": width, "height": 740}})
    await expect(page.locator("#store")).to_be_visible()
    box = await page.locator("#send").bounding_box()
    assert box and box["x"] + box["width"] <= width


async def test_turns_out_of_sight_are_not_laid_out(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    scripted.conversations["conv_1"] = {"id": "conv_1", "object": "conversation", "created_at": 1.8e9, "metadata": {}}
    for n in range(60):
        scripted.items += [message(f"Question {n}", f"q{n}", role="user"), message("Answer. " * 60, f"a{n}")]
    page = await open_page(f"{scripted.url}/#/c/conv_1")
    await expect(page.locator(".turn")).to_have_count(60)
    await expect(page.locator(".turn").last).to_be_in_viewport()
    laid_out = "(node) => node.querySelector('.prose p').checkVisibility({ contentVisibilityAuto: true })"
    assert not await page.locator(".turn").first.evaluate(laid_out)
    assert await page.locator(".turn").last.evaluate(laid_out)


async def test_the_chosen_theme_is_remembered(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url, color_scheme="light")
    await page.get_by_role("button", name="Use the dark theme").click()
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_a_phone_on_its_side_has_room_for_the_answer(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url, **{**PHONE, "viewport": {"width": 844, "height": 390}})
    await expect(page.get_by_role("button", name="Open the list of conversations")).to_be_visible()
    await expect(page.locator("[data-example]").first).to_be_in_viewport(ratio=1)
    boxes = [await page.locator(place).bounding_box() for place in ("#composer", "#send", "#question")]
    composer, send, question = [box for box in boxes if box is not None]
    assert composer["height"] < 390 / 4
    assert send["y"] < question["y"] + question["height"]  # beside it
