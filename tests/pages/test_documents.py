"""Documents on the page: chosen, dropped, pasted, watched while they are read, deleted; long texts in a question."""

from __future__ import annotations

import re
from typing import Any

from playwright.async_api import Page, expect

from retrieval.loaders.formats import LOADERS
from tests.pages.conftest import OpenPage, ask
from tests.pages.scripted import STORE, ScriptedWorker, message
from worker.routes.pages import STATIC

NOTES: Any = {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"# Notes"}
# A drop or a paste with one file, as a browser makes them.
TAKE = """(type) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File(["# Notes"], "notes.md"));
  const init = { bubbles: true, cancelable: true };
  document.body.dispatchEvent(type === "drop" ? new DragEvent(type, { ...init, dataTransfer })
    : new ClipboardEvent(type, { ...init, clipboardData: dataTransfer }));
}"""


async def panel(page: Page) -> Page:
    await page.get_by_role("button", name="Add documents").click()
    await expect(page.locator("#documents-note")).not_to_have_text("")
    return page


async def test_a_chosen_file_is_watched_until_it_can_be_searched_and_deleted(
    scripted: ScriptedWorker, open_page: OpenPage
) -> None:
    page = await panel(await open_page(scripted.url))
    await page.locator("#documents-picker").set_input_files(NOTES)
    row = page.locator(".document")
    await expect(row).to_contain_text("Reading")
    scripted.files[0].update(status="completed", firsttoken_passages=3)
    await expect(row).to_contain_text("3 passages")
    await row.get_by_role("button", name="Delete notes.md").click()
    await page.locator("#confirm-delete").get_by_role("button", name="Delete").click()
    await expect(row).to_have_count(0)
    assert scripted.files == []


async def test_a_file_that_is_refused_says_why(
    scripted: ScriptedWorker, open_page: OpenPage, complaints: list[str]
) -> None:
    scripted.refused = "The file is larger than 20 MB, which is the limit."
    page = await panel(await open_page(scripted.url))
    await page.locator("#documents-picker").set_input_files(NOTES)
    await expect(page.locator(".document[data-state=failed]")).to_contain_text("larger than 20 MB")
    await page.get_by_role("button", name="Dismiss notes.md").click()
    await expect(page.locator(".document")).to_have_count(0)
    complaints.clear()


async def test_a_file_that_nothing_can_read_is_refused_before_it_is_sent(
    scripted: ScriptedWorker, open_page: OpenPage
) -> None:
    page = await panel(await open_page(scripted.url))
    picture: Any = {"name": "cat.PNG", "mimeType": "image/png", "buffer": b"x"}
    nameless: Any = {"name": "LICENSE", "mimeType": "", "buffer": b"x"}
    await page.locator("#documents-picker").set_input_files([*[picture] * 49, nameless])
    refused = page.locator(".document[data-state=failed]")
    await expect(refused).to_have_count(50)
    await expect(refused.first).to_contain_text(".png files cannot be read. Add PDF, Word, Markdown")
    await expect(refused.last).to_contain_text("name has no ending")
    await page.locator("#documents-picker").set_input_files(NOTES)  # it has room beside them
    await expect(page.locator(".document[data-state=in_progress]")).to_contain_text("notes.md")
    assert len(scripted.files) == 1


def test_the_page_knows_the_kinds_of_files_that_can_be_read() -> None:
    source = (STATIC / "documents" / "kinds.js").read_text()
    told = "".join(re.findall(r'^ +"(.*?)"', source.split("split(")[0], re.MULTILINE))
    assert set(told.split()) == LOADERS.keys()


async def test_dropped_and_pasted_files_go_into_the_store(scripted: ScriptedWorker, open_page: OpenPage) -> None:
    page = await open_page(scripted.url)
    await expect(page.locator("#use-documents")).to_be_enabled()
    await page.evaluate(TAKE, "drop")
    await expect(page.locator(".document")).to_contain_text("notes.md")
    await page.evaluate(TAKE, "paste")
    await expect(page.locator(".document")).to_have_count(2)
    assert {file["store"] for file in scripted.files} == {STORE["id"]}


async def test_the_first_file_of_somebody_without_a_store_makes_one(
    scripted: ScriptedWorker, open_page: OpenPage
) -> None:
    scripted.stores = []
    page = await open_page(scripted.url)
    await expect(page.locator("#use-documents")).to_be_disabled()
    await page.evaluate(TAKE, "drop")
    await expect(page.locator(".document")).to_contain_text("notes.md")
    await expect(page.locator("#use-documents")).to_be_enabled()
    assert [store["name"] for store in scripted.stores] == ["Documents"]


async def test_a_new_store_is_what_the_next_question_uses(scripted: ScriptedWorker, open_page: OpenPage) -> None:
    page = await panel(await open_page(scripted.url))
    await page.get_by_text("New store").click()
    await page.get_by_label("Name of the new store").fill("Minutes")
    await page.get_by_role("button", name="Create").click()
    await expect(page.locator("#documents-store")).to_have_value("vs_2")
    await page.keyboard.press("Escape")
    await ask(page, "What was decided?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    assert scripted.turns[0]["tools"][0]["vector_store_ids"] == ["vs_2"]


async def test_a_long_paste_is_a_file_of_the_question(scripted: ScriptedWorker, open_page: OpenPage) -> None:
    page = await open_page(scripted.url, permissions=["clipboard-read", "clipboard-write"])
    await page.evaluate("() => navigator.clipboard.writeText('long '.repeat(2000))")
    await page.locator("#question").fill("What is this?")
    await page.locator("#question").press("Control+v")
    await expect(page.locator("#pastes")).to_contain_text("10,000 characters")
    await expect(page.locator("#question")).to_have_value("What is this?")
    await page.locator("#question").press("Enter")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    sent = scripted.turns[0]["input"]
    assert sent == "What is this?\nFile pasted text.txt:\n" + "long " * 2000
    scripted.items = [message(sent, "msg_q", role="user"), message("Hello.")]
    await page.reload()
    await expect(page.locator(".question > p")).to_have_text("What is this?")
    await expect(page.locator(".question summary")).to_contain_text("pasted text.txt")
    await expect(page.locator("#title")).to_have_text("What is this?")
