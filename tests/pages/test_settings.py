"""Settings of a conversation: used by its turns, kept with it, and not by others."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.pages.conftest import OpenPage, ask
from tests.pages.scripted import STORE, ScriptedWorker
from tests.pages.test_elsewhere import come_back

INSTRUCTIONS = "Be brief. 😀 " * 60  # longer than one value of metadata


async def choose(page: Page) -> None:
    await page.get_by_role("button", name="Settings of this conversation").click()
    await page.get_by_label("Instructions").fill(INSTRUCTIONS)
    await page.get_by_label("Temperature").fill("0.7")
    await page.get_by_label("Maximum length").fill("200")
    await page.get_by_label("Thinking").select_option("low")
    await page.get_by_role("button", name="Done").click()


async def test_a_conversation_keeps_its_settings_and_a_new_one_has_the_usual_ones(
    page: Page, worker: ScriptedWorker
) -> None:
    await choose(page)
    await ask(page, "Hello?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await page.reload()
    await expect(page.locator("#open-settings")).to_have_attribute("data-set", "true")
    await ask(page, "And now?")
    await expect(page.locator(".prose").last).to_have_text("Hello.")
    await page.get_by_role("button", name="New conversation").click()
    await ask(page, "Elsewhere?")
    await expect(page.locator(".question")).to_have_count(1)
    await expect(page.locator(".prose")).to_have_text("Hello.")
    first, second, elsewhere = worker.turns
    for turn in (first, second):
        assert turn["instructions"] == INSTRUCTIONS.strip()
        assert (turn["temperature"], turn["max_output_tokens"]) == (0.7, 200)
        assert turn["reasoning"] == {"effort": "low"}
    assert not elsewhere.keys() & {"temperature", "top_p", "instructions", "max_output_tokens", "reasoning"}
    settings = worker.conversations[first["conversation"]]["metadata"].values()
    assert all(len(value) <= 512 for value in settings)


async def test_settings_of_a_begun_conversation_are_changed_and_reset(page: Page, worker: ScriptedWorker) -> None:
    await ask(page, "Hello?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await choose(page)
    await expect(page.locator("#open-settings")).to_have_attribute("data-set", "true")
    conversation = worker.turns[0]["conversation"]
    assert worker.conversations[conversation]["metadata"]["title"] == "Hello?"
    await page.get_by_role("button", name="Settings of this conversation").click()
    await page.get_by_role("button", name="Reset").click()
    async with page.expect_response(f"**/conversations/{conversation}"):
        await page.get_by_role("button", name="Done").click()
    await expect(page.locator("#open-settings")).to_have_attribute("data-set", "false")
    assert worker.conversations[conversation]["metadata"] == {"title": "Hello?"}


async def test_settings_that_could_not_be_saved_are_used_and_saved_later(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    page = await open_page(scripted.url)
    await ask(page, "Hello?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await page.route("**/conversations/conv_1", lambda route: route.abort())
    await choose(page)
    await expect(page.locator("#warning")).to_contain_text("Cannot reach the worker.")
    await page.get_by_role("button", name="Settings of this conversation").click()
    await expect(page.get_by_label("Instructions")).to_have_value(INSTRUCTIONS.strip())
    await page.keyboard.press("Escape")
    await ask(page, "And now?")
    await expect(page.locator(".prose")).to_have_count(2)
    assert scripted.turns[1]["instructions"] == INSTRUCTIONS.strip()
    await page.unroute_all()
    async with page.expect_response("**/conversations/conv_1"):
        await come_back(page)
    assert scripted.conversations["conv_1"]["metadata"].keys() >= {"title", "firsttoken:instructions:0"}
    complaints.clear()


async def test_each_conversation_keeps_the_store_that_it_asks(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    scripted.stores = [STORE, {**STORE, "id": "vs_2", "name": "recipes"}]
    page = await open_page(scripted.url)
    store = page.locator("#store")
    await store.select_option("vs_2")
    await ask(page, "How long does it bake?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await page.get_by_role("button", name="New conversation").click()
    await store.select_option("vs_1")
    await ask(page, "How long are traces kept?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await page.get_by_role("link", name="How long does it bake?", exact=True).click()
    await expect(store).to_have_value("vs_2")
    await page.get_by_role("button", name="Settings of this conversation").click()
    await page.locator("#settings").get_by_label("Documents").select_option("vs_1")
    await page.get_by_label("Top p").fill("0.9")
    await page.get_by_role("button", name="Done").click()
    await expect(store).to_have_value("vs_1")
    await ask(page, "And then?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await page.reload()
    await expect(store).to_have_value("vs_1")
    asked = [turn["tools"][0]["vector_store_ids"] for turn in scripted.turns]
    assert (asked, scripted.turns[-1]["top_p"]) == ([["vs_2"], ["vs_1"], ["vs_1"]], 0.9)


async def test_settings_are_kept_by_a_name_and_chosen_again(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url)
    panel = page.get_by_role("button", name="Settings of this conversation")
    await panel.click()
    await page.get_by_label("Temperature").fill("0.7")
    await page.get_by_role("button", name="Save…").click()
    await page.get_by_label("Name of the preset").fill("Lively")
    await page.keyboard.press("Enter")
    await expect(page.locator("#preset")).to_have_value("Lively")
    await page.get_by_label("Temperature").fill("1.1")
    await expect(page.locator("#preset")).to_have_value("")
    await page.reload()
    await panel.click()
    await page.locator("#preset").select_option("Lively")
    await expect(page.get_by_label("Temperature")).to_have_value("0.7")
    await page.get_by_role("button", name="Done").click()
    await ask(page, "Hello?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    assert scripted.turns[0]["temperature"] == 0.7
    await panel.click()
    await page.get_by_role("button", name="Delete this preset").click()
    await expect(page.locator("#preset")).to_be_disabled()


async def test_the_lowest_positions_leave_sampling_to_the_model(page: Page, worker: ScriptedWorker) -> None:
    """Beside them, a temperature of 0 and a top p of 1 are choices like any other."""
    panel = page.get_by_role("button", name="Settings of this conversation")
    await panel.click()
    await expect(page.locator("#settings-temperature")).to_have_text("model default")
    await expect(page.locator("#settings-top-p")).to_have_text("model default")
    await page.get_by_label("Temperature").fill("0")
    await page.get_by_label("Top p").fill("1")
    await expect(page.locator("#settings-temperature")).to_have_text("0, repeatable")
    await page.get_by_role("button", name="Done").click()
    await ask(page, "Hello?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    assert (worker.turns[0]["temperature"], worker.turns[0]["top_p"]) == (0, 1)
