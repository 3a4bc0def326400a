"""The empty page says what the model is, and offers only what it can answer."""

from __future__ import annotations

from playwright.async_api import expect

from tests.pages.conftest import OpenPage
from tests.pages.scripted import STORE, ScriptedWorker


async def test_a_tiny_model_is_said_to_be_tiny_and_how_to_get_a_better_one(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    page = await open_page(scripted.url)
    await expect(page.locator("#ability")).to_contain_text("demo-chat (11 million parameters) is a tiny model")
    for better in ("--model smol-chat", "--model qwen3-4b-instruct"):
        await expect(page.locator("#better")).to_contain_text(better)
    await expect(page.get_by_role("button", name="What is 12 * 45, and what time is it in Tokyo?")).to_be_visible()
    await expect(page.get_by_role("button", name="What is 15% of 2,480?")).to_be_hidden()  # nor asked for percentages


async def test_a_small_model_is_said_to_use_tools_and_to_invent(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    scripted.parameters = 134_515_008
    page = await open_page(scripted.url)
    await expect(page.locator("#ability")).to_contain_text("uses tools, cites documents and chats a little")
    await expect(page.get_by_role("button", name="What is 15% of 2,480?")).to_be_visible()


async def test_a_large_model_is_not_talked_down(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    scripted.parameters = 4_022_468_096
    page = await open_page(scripted.url)
    await expect(page.locator("#ability")).to_contain_text("4.02 billion parameters")
    await expect(page.locator("#better")).to_be_hidden()


async def test_a_model_that_was_not_trained_to_use_tools_is_not_asked_to(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    scripted.parameters, scripted.tools_shown = 134_515_008, "described"
    page = await open_page(scripted.url)
    await expect(page.locator("#ability")).to_contain_text("It chats, but it knows little")
    await expect(page.locator("#ability")).to_contain_text("It was not trained to use tools.")
    await expect(page.get_by_role("button", name="What is a database?")).to_be_visible()
    await expect(page.get_by_role("button", name="What is 127 * 49?")).to_be_hidden()


async def test_documents_are_an_example_only_where_the_chosen_store_can_answer(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    scripted.stores = [{**STORE, "id": "vs_2", "name": "recipes"}, STORE]
    page = await open_page(scripted.url)
    example = page.locator("#document-example")
    await expect(page.locator("#store")).to_have_value("vs_2")
    await expect(example).to_be_hidden()
    await page.locator("#store").select_option("vs_1")
    await expect(example).to_contain_text("Ask the documents in docs")
    await page.locator("#store").select_option("vs_2")
    await expect(example).to_be_hidden()


async def test_a_phone_on_its_side_shows_the_headline_first(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url, viewport={"width": 844, "height": 390})
    await expect(page.locator("#use-documents")).to_be_enabled()
    await expect(page.locator("#welcome h2")).to_be_in_viewport(ratio=1)
    await page.locator("#question").fill("A question\nof two lines")
    await page.locator("#question").press("Enter")
    await expect(page.locator(".actions").last).to_be_in_viewport()
    await page.get_by_role("button", name="Open the list of conversations").click()
    await page.locator("#new").click()
    await expect(page.locator("#welcome h2")).to_be_in_viewport(ratio=1)


async def test_while_a_store_is_read_the_page_says_so_and_offers_its_example_once_it_can(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    scripted.stores, scripted.documented = (
        [{**STORE, "status": "in_progress", "file_counts": {"in_progress": 5, "completed": 4}}],
        set(),
    )
    page = await open_page(scripted.url)
    reading, example = page.locator("#reading"), page.locator("#document-example")
    await expect(reading).to_have_text("The documents in docs are being read: 5 to go.")
    await expect(example).to_be_hidden()
    await page.locator("#use-documents").click()  # what is not used is not waited for
    await expect(reading).to_be_hidden()
    await page.locator("#use-documents").click()
    async with page.expect_event("requestfailed"):
        await page.route("**/v1/vector_stores", lambda route: route.abort())  # its worker is begun again
    await page.unroute("**/v1/vector_stores")
    complaints.clear()  # of the browser, about that
    scripted.stores, scripted.documented = [STORE], {"vs_1"}
    await expect(reading).to_be_hidden()
    await expect(example).to_be_visible()


async def test_a_store_that_is_read_is_asked_about_ever_less_often_and_only_while_somebody_sees_the_page(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    def has(left: int) -> None:
        scripted.stores = [{**STORE, "file_counts": {"in_progress": left, "completed": 1}}]

    async def pass_by(ms: int) -> None:
        await page.clock.run_for(ms)
        await page.evaluate("fetch('/v1/models').then((response) => response.text())")  # behind what it asked before

    async def show(hidden: bool) -> None:
        await page.evaluate(
            "(value) => { Object.defineProperty(document, 'hidden', { value, configurable: true });"
            " document.dispatchEvent(new Event('visibilitychange')); }",
            hidden,
        )

    has(9)
    page = await open_page("about:blank", own=True)
    await page.clock.install(time=0)
    await page.clock.pause_at(1000)
    await page.goto(scripted.url)
    reading = page.locator("#reading")
    for left, wait_ms in ((9, 1000), (8, 1500), (7, 2250)):
        await expect(reading).to_contain_text(f"{left} to go")
        has(left - 1)
        await pass_by(wait_ms - 100)
        assert f"{left} to go" in await reading.inner_text()
        await pass_by(100)
    await expect(reading).to_contain_text("6 to go")
    await show(hidden=True)
    has(0)
    await pass_by(60_000)
    assert "6 to go" in await reading.inner_text()
    await show(hidden=False)
    await expect(reading).to_be_hidden()
