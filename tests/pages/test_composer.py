"""Asking: the keyboard, the options, the theme, the phone."""

from __future__ import annotations

from base64 import b64decode

from playwright.async_api import FilePayload, Locator, Page, Request, expect

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


async def test_shift_enter_breaks_the_line_and_examples_ask_at_once(page: Page, worker: ScriptedWorker) -> None:
    question = page.locator("#question")
    await question.fill("one")
    await question.press("Shift+Enter")
    await question.type("two")
    await expect(question).to_have_value("one\ntwo")
    assert worker.turns == []
    await page.locator("[data-example]").first.click()
    await expect(page.locator(".prose")).to_have_text("Hello.")


PRESS = """(field, mark) => field.dispatchEvent(new KeyboardEvent(
    "keydown", { key: "Enter", bubbles: true, cancelable: true, ...mark }))"""


async def test_enter_that_picks_a_word_of_an_input_method_sends_nothing(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    async def pick(field: Locator) -> None:
        for mark in ({"isComposing": True}, {"keyCode": 229}):  # Safari marks it in the second way only
            await field.evaluate(PRESS, mark)

    page = await open_page(scripted.url)
    question = page.locator("#question")
    await question.fill("日本")
    await pick(question)
    await expect(question).to_have_value("日本")
    await question.press("Enter")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await page.locator(".conversation").hover()
    await page.locator(".conversation").get_by_role("button", name="More").click()
    await page.get_by_role("menuitem", name="Rename").click()
    title = page.get_by_label("New title")
    await title.fill("half a word")
    await pick(title)
    await title.press("Escape")
    await expect(page.locator(".conversation").get_by_role("link")).to_have_text("日本")
    assert "half a word" not in str(scripted.conversations)
    await page.get_by_role("button", name="Edit").click()
    edited = page.locator(".edit-question textarea")
    await pick(edited)
    await expect(edited).to_be_visible()
    assert len(scripted.turns) == 1


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
    await page.get_by_role("button", name="Account").click()
    await page.keyboard.press("Escape")  # closes what lies on top
    await expect(page.get_by_role("menu")).to_have_count(0)
    await expect(page.locator("body")).to_have_attribute("data-drawer", "open")
    await page.keyboard.press("Escape")
    await expect(page.locator("#sidebar")).not_to_be_in_viewport()


async def test_a_phone_keeps_send_in_sight_beside_a_long_store_name(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    scripted.stores = [
        {**STORE, "name": "The collected minutes of the committee for long names"},
        {**STORE, "id": "vs_2"},
    ]
    page = await open_page(scripted.url, **PHONE)
    await expect(page.locator("#store")).to_be_visible()
    for width in (390, 360, 320):
        await page.set_viewport_size({"width": width, "height": 740})
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


RED = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC")


async def test_pictures_are_part_of_the_question_where_the_model_sees(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    scripted.modalities = ["text", "image"]
    page = await open_page(scripted.url)
    await expect(page.locator("#add-pictures")).to_be_visible()
    files: list[FilePayload] = [{"name": f"{n}.png", "mimeType": "image/png", "buffer": RED} for n in ("a", "b")]
    await page.locator("#pictures-picker").set_input_files(files)
    chips = page.locator("#pastes .thumbnail")
    await expect(chips).to_have_count(2)
    await page.get_by_role("button", name="Remove a.png").click()
    await expect(chips).to_have_count(1)
    await ask(page, "What is it?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    shown = page.locator(".question img")
    await expect(shown).to_have_js_property("naturalWidth", 1)
    (said,) = scripted.turns[0]["input"]
    image, text = said["content"]
    assert b64decode(image["image_url"].removeprefix("data:image/png;base64,")) == RED
    assert text == {"type": "input_text", "text": "What is it?"}
    scripted.items = [{**message("", role="user"), "content": said["content"]}, message("Red.", "msg_2")]
    await page.reload()
    await expect(page.locator(".question p")).to_have_text("What is it?")
    await expect(shown).to_have_js_property("naturalWidth", 1)


async def test_a_large_picture_is_made_smaller_and_what_is_none_is_told(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    scripted.modalities = ["text", "image"]
    page = await open_page(scripted.url)
    await expect(page.locator("#add-pictures")).to_be_visible()
    await page.evaluate(
        """async () => {
          const data = new DataTransfer();
          const canvas = new OffscreenCanvas(4000, 1000);
          canvas.getContext("2d").fillRect(0, 0, 9, 9);
          const blob = await canvas.convertToBlob({ type: "image/png" });
          data.items.add(new File([blob], "wide.png", { type: "image/png" }));
          data.items.add(new File(["hello"], "none.png", { type: "image/png" }));
          dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
        }"""
    )
    await expect(page.locator("#warning-text")).to_contain_text("“none.png” is no picture")
    await expect(page.locator("#pastes .thumbnail")).to_have_js_property("naturalWidth", 1600)


async def test_without_eyes_a_picture_is_a_document_as_any_file(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url)
    await expect(page.locator("#use-documents")).to_be_enabled()
    await expect(page.locator("#add-pictures")).to_be_hidden()
