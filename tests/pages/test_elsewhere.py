"""One person in two browsers: the page that stood open shows what happened in the other one."""

from __future__ import annotations

import asyncio
import json

import pytest
from playwright.async_api import Page, expect

from tests.pages.conftest import OpenPage, ask
from tests.pages.scripted import ScriptedWorker, Stream, message


def stored(n: int, *answers: str) -> list[dict[str, object]]:
    question = message(f"Question {n}", f"msg_q{n}", role="user", response_id=f"resp_{n}")
    return [question, *(message(text, f"msg_a{n}", response_id=f"resp_{n}") for text in answers)]


@pytest.fixture
async def page(page: Page, worker: ScriptedWorker) -> Page:
    """A conversation of one turn."""
    created = {"id": "conv_1", "object": "conversation", "created_at": 1.8e9, "metadata": {}}
    worker.conversations, worker.items = {"conv_1": created}, stored(1, "First.")
    await page.goto(f"{worker.url}/#/c/conv_1")
    await expect(page.locator(".prose")).to_have_text(["First."])
    return page


OTHER = {"id": "resp_2", "question": "Question 2", "versions": []}


async def note_another(page: Page) -> None:
    """As another tab does that waits for the answer of a question."""
    await page.evaluate("(noted) => localStorage.setItem('firsttoken.running.conv_1', noted)", json.dumps(OTHER))


async def come_back(page: Page) -> None:
    """As a browser tells it when its window is chosen again, some time later."""
    await page.evaluate(
        "() => { Date.now = ((now) => () => now() + 5000)(Date.now); dispatchEvent(new Event('focus')); }"
    )


async def test_a_turn_of_another_browser_is_there_when_one_comes_back(page: Page, worker: ScriptedWorker) -> None:
    worker.items += stored(2, "Second.")
    other = {"id": "conv_2", "object": "conversation", "created_at": 1.8e9, "metadata": {"title": "From elsewhere"}}
    worker.conversations["conv_2"] = other
    await come_back(page)
    await expect(page.locator(".prose")).to_have_text(["First.", "Second."])
    await expect(page.locator("#conversations")).to_contain_text("From elsewhere")
    del worker.conversations["conv_2"]
    await come_back(page)
    await expect(page.locator(".conversation")).to_have_count(1)


async def test_an_answer_that_another_tab_waits_for_is_followed(page: Page, worker: ScriptedWorker) -> None:
    told = asyncio.Event()

    async def rest(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("It is ")
        await told.wait()
        await stream.text("done.")
        await stream.end_text("It is done.")
        await stream.complete()

    worker.rest = rest
    await note_another(page)
    await come_back(page)
    await expect(page.locator(".prose")).to_have_text(["First.", "It is"])
    await expect(page.locator(".question p")).to_have_text(["Question 1", "Question 2"])
    told.set()
    await expect(page.locator(".prose")).to_have_text(["First.", "It is done."])


async def test_two_tabs_that_ask_at_once_show_both_turns_in_the_end(page: Page, worker: ScriptedWorker) -> None:
    told = asyncio.Event()

    async def slow(stream: Stream) -> None:
        await told.wait()
        await stream.begin_text()
        await stream.text("Here.")
        await stream.end_text("Here.")
        await stream.complete()

    worker.script = slow
    await ask(page, "Question 3")
    await expect(page.locator(".waiting").last).to_be_visible()
    # The other one began later and ended first.
    await note_another(page)
    told.set()
    await expect(page.locator(".prose")).to_have_text(["First.", "Here."])
    noted = await page.evaluate("() => localStorage.getItem('firsttoken.running.conv_1')")
    assert json.loads(noted) == OTHER, "it is still waited for"
    here = [{**item, "firsttoken_response_id": "resp_1"} for item in stored(3, "Here.")]
    worker.items = [*stored(0, "First."), *stored(2, "Elsewhere."), *here]
    await page.locator("#question").blur()
    await come_back(page)
    await expect(page.locator(".prose")).to_have_text(["First.", "Elsewhere.", "Here."])


async def test_what_is_shown_already_is_left_alone(page: Page, worker: ScriptedWorker) -> None:
    await page.locator(".turn").evaluate("(node) => { node.marked = true; }")
    async with page.expect_response("**/items?order=desc*"):
        await come_back(page)
    assert await page.locator(".turn").evaluate("(node) => node.marked")


async def test_a_question_that_did_not_arrive_stays_whatever_others_do(
    page: Page, worker: ScriptedWorker, complaints: list[str]
) -> None:
    worker.refusals = [(400, {})]
    await page.locator("#question").fill("Is this lost?")
    await page.keyboard.press("Enter")
    await expect(page.locator(".question p")).to_have_text(["Question 1", "Is this lost?"])
    await page.locator("#question").blur()
    worker.items += stored(2, "Second.")
    await come_back(page)
    await expect(page.locator(".question p")).to_have_text(["Question 1", "Question 2", "Is this lost?"])
    await expect(page.locator(".problem")).to_contain_text("Refused with 400.")
    complaints.clear()  # the browser's, of the refusal


async def test_an_answer_whose_connection_was_lost_is_shown_once_the_worker_is_reached(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    async def broken(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("It was going w")

    scripted.script = broken
    page = await open_page(scripted.url)
    await ask(page, "Question 1")
    await expect(page.locator(".problem")).to_contain_text("The connection was lost")
    scripted.items = stored(1, "It was going well.")
    await page.locator("#question").blur()
    await come_back(page)
    await expect(page.locator(".prose")).to_have_text(["It was going well."])
    await expect(page.locator(".problem")).to_have_count(0)
    complaints.clear()


async def test_a_session_that_ended_is_told_before_something_is_asked(
    page: Page, worker: ScriptedWorker, complaints: list[str]
) -> None:
    worker.signed_in = False
    await come_back(page)
    warning = page.locator("#warning")
    await expect(warning).to_contain_text("You are signed out.")
    await expect(warning.get_by_role("button", name="Sign in")).to_be_visible()
    complaints.clear()
