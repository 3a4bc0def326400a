"""Conversations on the page: kept, found again, renamed, deleted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from playwright.async_api import Page, expect

from tests.pages.conftest import OpenPage, ask
from tests.pages.scripted import ScriptedWorker, Stream, hello, message


async def test_reload_brings_the_conversation_back(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url)
    await ask(page, "Will you remember?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    assert page.url.endswith("#/c/conv_1")
    scripted.items += [message("Will you remember?", "msg_0", role="user"), message("Yes, **always**.")]
    await page.reload()
    await expect(page.locator(".question p")).to_have_text("Will you remember?")
    await expect(page.locator(".prose strong")).to_have_text("always")
    await expect(page.locator("[aria-current]")).to_have_text("Will you remember?")
    await expect(page).to_have_title("Will you remember? · Firsttoken")


async def test_a_conversation_that_a_program_began_is_called_by_its_first_question(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    made = {"id": "conv_1", "object": "conversation", "created_at": 1.8e9, "metadata": {}}
    scripted.conversations["conv_1"] = {**made, "firsttoken_beginning": "How  high\nis it?"}
    page = await open_page(scripted.url)
    await page.get_by_role("link", name="How high is it?", exact=True).click()
    await expect(page).to_have_title("How high is it? · Firsttoken")


async def test_an_answer_goes_on_while_another_conversation_is_shown(page: Page, worker: ScriptedWorker) -> None:
    more = asyncio.Event()

    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("Slow")
        await more.wait()
        await stream.text(" but sure.")
        await stream.end_text("Slow but sure.")
        await stream.complete()

    worker.script = answer
    await ask(page, "Take your time")
    await expect(page.locator(".prose")).to_have_text("Slow")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator("#welcome")).to_be_visible()
    await page.get_by_role("link", name="Take your time").click()
    more.set()
    await expect(page.locator(".prose")).to_have_text("Slow but sure.")


async def test_a_new_conversation_is_there_in_the_moment_of_the_click(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    page = await open_page(scripted.url)
    await ask(page, "Hello?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await page.evaluate(  # before the browser can tell of the new address
        """() => {
            document.querySelector("#new").click();
            const question = document.querySelector("#question");
            question.value = "Elsewhere?";
            question.form.requestSubmit();
        }"""
    )
    await expect(page.locator(".question")).to_contain_text("Elsewhere?")
    await expect(page.get_by_role("link", name="Elsewhere?")).to_be_visible()
    await page.go_back()
    await expect(page).to_have_url(f"{scripted.url}/#/c/conv_1")
    await expect(page.locator(".question")).to_have_count(0)  # it is left: the scripted worker keeps no items


async def test_a_conversation_can_be_renamed_and_deleted(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url)
    await ask(page, "First thought")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    row = page.locator(".conversation")
    await row.hover()
    await row.get_by_role("button", name="More").click()
    await page.get_by_role("menuitem", name="Rename").click()
    await page.get_by_label("New title").fill("Second thought")
    await page.keyboard.press("Enter")
    await expect(row.get_by_role("link")).to_have_text("Second thought")
    assert scripted.conversations["conv_1"]["metadata"] == {"title": "Second thought"}
    await row.hover()
    await row.get_by_role("button", name="More").click()
    await page.get_by_role("menuitem", name="Delete").click()
    await page.locator("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator(".conversation")).to_have_count(0)
    await expect(page.locator("#welcome")).to_be_visible()
    assert scripted.conversations == {}


async def test_a_list_that_is_drawn_again_keeps_a_title_that_is_written_and_the_focus(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    told = asyncio.Event()

    async def slow(stream: Stream) -> None:
        await told.wait()
        await hello(stream)

    scripted.script = slow
    scripted.conversations["conv_0"] = conversation(0, "Another")
    page = await open_page(scripted.url)
    await ask(page, "First thought")
    link = page.get_by_role("link", name="thought")
    more = page.locator(".conversation", has=link).get_by_role("button", name="More")
    await link.focus()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await page.get_by_role("menuitem", name="Rename").press("Enter")
    await page.keyboard.type("Second thought")
    told.set()
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await expect(page.get_by_role("button", name="Send the question")).to_be_visible()
    await expect(page.get_by_label("New title")).to_have_value("Second thought")
    await page.keyboard.press("Enter")
    await expect(link).to_have_text("Second thought")
    await expect(link).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await page.get_by_role("menuitem", name="Pin").press("Enter")
    await expect(page.locator(".period").first).to_have_text("Pinned")
    await expect(more).to_be_focused()
    await page.get_by_role("link", name="Another").hover()
    await page.get_by_role("button", name="More about “Another”").click()
    await page.get_by_role("menuitem", name="Delete").press("Enter")
    await page.locator("dialog").get_by_role("button", name="Delete").press("Enter")
    await expect(page.locator("#new")).to_be_focused()


async def test_older_conversations_are_there_when_the_last_one_listed_is_deleted(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    for n in range(32):
        metadata = {"title": f"Thought {n}"}
        scripted.conversations[f"conv_{n}"] = {"id": f"conv_{n}", "created_at": 1.7e9 + n, "metadata": metadata}
    page = await open_page(scripted.url)
    rows = page.locator(".conversation")
    await expect(rows).to_have_count(30)
    await rows.last.hover()
    await rows.last.get_by_role("button", name="More").click()
    await page.get_by_role("menuitem", name="Delete").click()
    await page.locator("dialog").get_by_role("button", name="Delete").click()
    await expect(rows).to_have_count(29)
    del scripted.conversations["conv_3"]  # in another tab: the list still has it
    await page.get_by_role("button", name="Older conversations").click()
    await expect(rows).to_have_count(31)
    await expect(rows.last.get_by_role("link")).to_have_text("Thought 0")
    complaints.clear()


async def test_a_conversation_that_is_gone_says_so(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    page = await open_page(f"{scripted.url}/#/c/conv_gone")
    await expect(page.locator(".problem")).to_contain_text("no longer exists")
    complaints.clear()


async def test_a_conversation_that_could_not_be_fetched_is_asked_for_again(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    scripted.conversations = {each["id"]: each for each in (conversation(0, "One"), conversation(1, "Two"))}
    scripted.items = [message("Hello?", "msg_0", role="user"), message("Yes.")]
    page = await open_page(scripted.url)
    await page.route("**/items?*", lambda route: route.abort())
    await page.get_by_role("link", name="Two", exact=True).click()
    await expect(page.locator(".problem")).to_contain_text("Cannot reach the worker.")
    await page.unroute_all()
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".prose")).to_have_text("Yes.")
    await expect(page.locator(".problem")).to_have_count(0)
    complaints.clear()


def conversation(number: int, title: str, **metadata: str) -> dict[str, Any]:
    created = {"object": "conversation", "created_at": 1.8e9 - number * 86400}
    return {"id": f"conv_{number}", **created, "metadata": {"title": title, **metadata}}


async def test_a_pinned_conversation_stands_first(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    scripted.conversations = {each["id"]: each for each in (conversation(1, "One"), conversation(0, "Two"))}
    page = await open_page(scripted.url)
    await expect(page.locator(".conversation a")).to_have_text(["Two", "One"])
    await page.locator(".conversation").last.hover()
    await page.get_by_role("button", name="More about “One”").click()
    await page.get_by_role("menuitem", name="Pin").click()
    await expect(page.locator(".conversation a")).to_have_text(["One", "Two"])
    await page.reload()
    await expect(page.locator(".period").first).to_have_text("Pinned")
    await expect(page.locator(".conversation a")).to_have_text(["One", "Two"])


async def test_the_palette_finds_a_conversation_by_its_words(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    scripted.conversations = {each["id"]: each for each in (conversation(1, "Trains"), conversation(2, "Planes"))}
    before = "😀 What stands far before it is of no use: "
    marks = [[len(before), len(before) + 5]]
    excerpt = {"item_id": "msg_1", "text": f"{before}Wings and rails", "marks": marks}
    scripted.found = [{**conversation(2, "Planes"), "firsttoken_excerpt": excerpt}]
    page = await open_page(scripted.url)
    await expect(page.locator(".conversation")).to_have_count(2)
    await page.keyboard.press("Control+k")
    options = page.locator("#palette-list").get_by_role("option")
    await expect(options).to_have_count(5)  # both, and three commands
    await page.keyboard.type("wing")
    await expect(options).to_have_count(1)
    await expect(options.locator("mark")).to_have_text("Wings")
    await expect(options.locator("small")).to_have_text(f"…{before[-16:]}Wings and rails")
    await page.keyboard.press("Enter")
    await expect(page.locator("#palette")).to_be_hidden()
    assert page.url.endswith("#/c/conv_2")
    assert scripted.searched[-1] == "wing"


async def test_a_conversation_is_shared_and_the_link_revoked(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    scripted.conversations = {"conv_1": conversation(1, "Trains")}
    page = await open_page(f"{scripted.url}/#/c/conv_1")
    await page.get_by_role("button", name="More about this conversation").click()
    await expect(page.get_by_role("menuitem", name="Export as Markdown")).to_have_attribute(
        "href", "/v1/conversations/conv_1/export?format=markdown"
    )
    await page.get_by_role("menuitem", name="Share").click()
    await page.get_by_role("button", name="Create a link").click()
    await expect(page.get_by_label("Link", exact=True)).to_have_value(f"{scripted.url}/shared#secret")
    await page.get_by_role("button", name="Revoke the link").click()
    await expect(page.get_by_role("button", name="Create a link")).to_be_visible()


async def imported(page: Page, name: str, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    await page.get_by_role("button", name="Account").click()
    async with page.expect_file_chooser() as chooser:
        await page.get_by_role("menuitem", name="Import a conversation").click()
    await (await chooser.value).set_files({"name": name, "mimeType": "application/json", "buffer": text.encode()})


async def test_what_was_exported_and_messages_as_programs_keep_them_are_imported_and_other_files_say_what_they_are(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    page = await open_page(scripted.url)
    for content, told in (("Dear diary", "is not JSON"), ({"items": [{"role": 7}]}, "has no messages")):
        await imported(page, "diary.json", content)
        await expect(page.locator("#warning")).to_contain_text(told)
    assert scripted.conversations == {}
    said = [message(f"Text {n}", f"msg_{n}", "user" if n % 2 == 0 else "assistant") for n in range(24)]
    call = {"type": "function_call", "name": "calculator", "arguments": "{}"}
    await imported(page, "trains.json", {"metadata": {"title": "Trains"}, "items": [call, *said]})
    await expect(page.locator(".turn")).to_have_count(12)
    await expect(page.locator("#title")).to_have_text("Trains")
    await expect(page.locator(".prose").last).to_have_text("Text 23")
    assert len(scripted.items) == 24
    scripted.items.clear()
    await imported(page, "chat.json", [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}])
    await expect(page.locator(".prose")).to_have_text(["Hello."])
    await expect(page.locator("#title")).to_have_text("Hi")
