"""What the page does when an answer is stopped, refused, or breaks off."""

from __future__ import annotations

import asyncio
import re

from playwright.async_api import expect

from tests.pages.conftest import OpenPage, ask
from tests.pages.scripted import ScriptedWorker, Stream, hello, message


async def test_stop_ends_the_request_and_keeps_what_was_written(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    gone = asyncio.Event()

    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("Half an ans")
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    scripted.script = answer
    page = await open_page(scripted.url)
    await ask(page, "Something long")
    await expect(page.locator(".prose")).to_have_text("Half an ans")
    await page.get_by_role("button", name="Stop the answer").click()
    await asyncio.wait_for(gone.wait(), 10)
    assert scripted.cancelled == ["resp_1"]
    await expect(page.locator(".note")).to_contain_text("Stopped")
    await expect(page.locator(".prose")).to_have_text("Half an ans")
    await expect(page.get_by_role("button", name="Send the question")).to_be_visible()


async def test_a_busy_worker_is_asked_again_after_a_countdown(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    scripted.refusals.append((429, {"retry-after-ms": "1200"}))
    page = await open_page(scripted.url)
    await ask(page, "Are you there?")
    await expect(page.locator(".problem")).to_contain_text(re.compile(r"Trying again in [12] s"))
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await expect(page.locator(".question")).to_have_count(1)
    assert len(scripted.turns) == 2
    assert [text for text in complaints if "429" not in text] == []
    complaints.clear()


async def test_a_lost_session_says_how_to_sign_in_again(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    scripted.refusals.append((401, {}))
    page = await open_page(scripted.url)
    await ask(page, "Who am I?")
    await expect(page.locator(".problem")).to_contain_text("firsttoken link")
    complaints.clear()


async def test_a_broken_connection_keeps_the_text_and_offers_to_try_again(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    async def broken(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("It was going w")

    scripted.script = broken
    page = await open_page(scripted.url)
    await ask(page, "Go on")
    await expect(page.locator(".problem")).to_contain_text("The connection was lost")
    await expect(page.locator(".prose")).to_have_text("It was going w")
    scripted.script = hello
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await expect(page.locator(".question")).to_have_count(1)
    complaints.clear()


async def test_a_failed_answer_says_so(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    async def failed(stream: Stream) -> None:
        error = {"code": "server_error", "message": "The engine stopped."}
        await stream.send("response.failed", response={"id": "resp_1", "status": "failed", "error": error})

    scripted.script = failed
    page = await open_page(scripted.url)
    await ask(page, "Hello?")
    await expect(page.locator(".problem")).to_contain_text("The engine stopped.")


async def test_an_answer_that_was_stopped_in_another_page_says_so(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    async def stopped(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("It was going w")
        await stream.done()

    scripted.script = stopped
    page = await open_page(scripted.url)
    await ask(page, "Go on")
    await expect(page.locator(".note")).to_contain_text("Stopped")
    await expect(page.locator(".problem")).to_have_count(0)


async def test_an_answer_goes_on_after_the_connection_was_lost(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    reconnected, told = asyncio.Event(), asyncio.Event()

    async def broken(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("It goes ")

    async def rest(stream: Stream) -> None:
        reconnected.set()
        await told.wait()
        await stream.text("on.")
        await stream.end_text("It goes on.")
        await stream.complete()

    scripted.script, scripted.rest = broken, rest
    page = await open_page(scripted.url)
    await ask(page, "Go on")
    await reconnected.wait()
    await expect(page.locator(".waiting")).to_have_text("Reconnecting")
    await expect(page.locator(".prose")).to_have_text("It goes")
    told.set()
    await expect(page.locator(".prose")).to_have_text("It goes on.")
    await expect(page.get_by_role("button", name="Send the question")).to_be_visible()
    assert scripted.resumed == [2]  # after response.created, the item and its first piece


async def test_an_answer_goes_on_after_the_page_was_loaded_again(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    async def standing(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("It goes ")
        await asyncio.Event().wait()

    async def whole(stream: Stream) -> None:
        await stream.send("response.created", response={"id": "resp_1", "status": "in_progress"})
        await stream.begin_text()
        await stream.text("It goes on.")
        await stream.end_text("It goes on.")
        await stream.complete()

    scripted.script, scripted.rest = standing, whole
    page = await open_page(scripted.url)
    await ask(page, "Go on")
    await expect(page.locator(".prose")).to_have_text("It goes")
    await page.reload()
    await expect(page.locator(".question p")).to_have_text("Go on")
    await expect(page.locator(".prose")).to_have_text("It goes on.")
    assert scripted.resumed == [-1]
    scripted.items = [message("Go on", "msg_0", "user"), message("It goes on.")]
    await page.reload()
    await expect(page.locator(".prose")).to_have_text("It goes on.")
    assert scripted.resumed == [-1]  # nothing is left to wait for
