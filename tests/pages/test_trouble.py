"""What the page does when an answer is stopped, refused, or breaks off."""

from __future__ import annotations

import asyncio
import re

from playwright.async_api import FilePayload, Page, Route, expect

from tests.pages.conftest import OpenPage, ask
from tests.pages.scripted import ScriptedWorker, Stream, hello, message


async def test_stop_ends_the_request_and_keeps_what_was_written(page: Page, worker: ScriptedWorker) -> None:
    gone = asyncio.Event()

    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("Half an ans")
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    worker.script = answer
    await ask(page, "Something long")
    await expect(page.locator(".prose")).to_have_text("Half an ans")
    await page.get_by_role("button", name="Stop the answer").click()
    await asyncio.wait_for(gone.wait(), 10)
    assert worker.cancelled == ["resp_1"]
    await expect(page.locator(".note")).to_contain_text("Stopped")
    await expect(page.locator(".prose")).to_have_text("Half an ans")
    await expect(page.get_by_role("button", name="Send the question")).to_be_visible()


async def test_an_answer_that_is_stopped_before_the_page_knows_it_is_stopped_once_it_does(
    page: Page, worker: ScriptedWorker
) -> None:
    arrives = asyncio.Event()

    async def slowly(route: Route) -> None:
        await arrives.wait()
        await route.continue_()

    await page.route("**/v1/responses", slowly)
    await ask(page, "Something long")
    await ask(page, "In short")
    await expect(page.locator(".heard")).to_have_text("You said: In short")
    await page.get_by_role("button", name="Stop the answer").click()
    told = ["Stopped before the answer began.", "This question was not answered."]
    await expect(page.locator(".problem p")).to_have_text(told)
    await expect(page.get_by_role("button", name="Try again")).to_have_count(2)
    async with page.expect_response("**/v1/responses/*/cancel"):
        arrives.set()
    assert worker.cancelled == ["resp_1"]


async def test_a_question_that_nothing_answers_is_sent_again_as_the_same_request(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    sent: list[tuple[str | None, str | None]] = []
    held = asyncio.Event()

    async def silent(route: Route) -> None:
        sent.append((await route.request.header_value("idempotency-key"), route.request.post_data))
        if len(sent) == 1:
            held.set()
        else:
            await route.continue_()

    page = await open_page("about:blank", own=True)
    await page.clock.install()
    await page.goto(scripted.url)
    await page.route("**/v1/responses", silent)
    scripted.refusals = [(409, {"retry-after-ms": "500"})]
    scripted.reason = {"code": "idempotency_key_in_use"}
    await ask(page, "Are you there?")
    await held.wait()
    await page.clock.fast_forward("01:30")
    await expect(page.locator(".problem p")).to_contain_text("The worker does not answer.")
    await page.get_by_role("button", name="Tools").click()  # another choice changes nothing of what was sent
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".problem p")).to_have_text("The question has arrived and waits for its turn.")
    await page.clock.run_for(1000)
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await expect(page.locator(".question")).to_have_count(1)
    assert len(sent) == 3 and len(set(sent)) == 1 and sent[0][0]
    await ask(page, "Are you there?")
    await expect(page.locator(".prose")).to_have_count(2)
    assert sent[-1][0] != sent[0][0]
    complaints.clear()


async def test_a_conversation_that_cannot_be_begun_says_so(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    page = await open_page(scripted.url, own=True)
    # The clock of such a signal is the browser's own.
    await page.evaluate("() => { own = AbortSignal.timeout; AbortSignal.timeout = () => own.call(AbortSignal, 100); }")
    await page.route("**/v1/conversations", lambda route: asyncio.Event().wait())
    await ask(page, "Are you there?")
    await expect(page.locator(".problem p")).to_contain_text("Cannot reach the worker.")
    await page.unroute_all()
    await page.evaluate("() => { AbortSignal.timeout = own; }")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".prose")).to_have_text("Hello.")
    complaints.clear()


async def test_a_busy_worker_is_asked_again_after_a_countdown(
    page: Page, worker: ScriptedWorker, complaints: list[str]
) -> None:
    worker.refusals.append((429, {"retry-after-ms": "1200"}))
    await ask(page, "Are you there?")
    await expect(page.locator(".problem")).to_contain_text(re.compile(r"Trying again in [12] s"))
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await expect(page.locator(".question")).to_have_count(1)
    assert len(worker.turns) == 2
    assert [text for text in complaints if "429" not in text] == []
    complaints.clear()


async def test_a_lost_session_says_how_to_sign_in_again(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    page = await open_page(scripted.url)
    scripted.signed_in = False
    await ask(page, "Who am I?")
    await page.locator(".problem").get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", name="You are not signed in")).to_be_visible()
    await expect(page.locator("ol")).to_contain_text("firsttoken link")
    scripted.signed_in = True
    await page.reload()
    await expect(page.locator("#question")).to_have_value("Who am I?")
    complaints.clear()


async def test_an_answer_whose_session_ends_goes_on_after_the_next_sign_in(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    async def broken(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("It goes ")
        scripted.signed_in = False

    async def whole(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("It goes on.")
        await stream.end_text("It goes on.")
        await stream.complete()

    scripted.script, scripted.rest = broken, whole
    page = await open_page(scripted.url)
    await ask(page, "Go on")
    await expect(page.locator(".problem")).to_contain_text("You are signed out.")
    scripted.signed_in = True
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator(".prose")).to_have_text("It goes on.")
    complaints.clear()


async def test_a_spent_budget_says_so_and_is_not_asked_again_by_itself(
    page: Page, worker: ScriptedWorker, complaints: list[str]
) -> None:
    worker.refusals.append((429, {"retry-after": "1"}))
    worker.reason = {"message": "This key has spent its budget of 5 for today.", "code": "insufficient_quota"}
    await ask(page, "One more?")
    await expect(page.locator(".problem")).to_contain_text("has spent its budget of 5 for today.")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".prose")).to_have_text("Hello.")
    complaints.clear()


async def test_what_is_refused_for_hours_is_not_counted_down(
    page: Page, worker: ScriptedWorker, complaints: list[str]
) -> None:
    worker.refusals.append((503, {"retry-after": "7200"}))
    await ask(page, "Are you there?")
    await expect(page.locator(".problem .button")).to_have_text("Try again")
    complaints.clear()


async def test_a_question_to_a_conversation_that_was_deleted_is_the_draft_of_a_new_one(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    page = await open_page(scripted.url)
    await ask(page, "First?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    scripted.refusals.append((404, {}))
    scripted.reason = {"code": "conversation_not_found"}
    await ask(page, "Are you there?")
    await expect(page.locator(".problem")).to_contain_text("This conversation no longer exists.")
    await page.locator(".problem").get_by_role("button", name="New conversation").click()
    await expect(page.locator("#question")).to_have_value("Are you there?")
    await page.get_by_role("link", name="First?", exact=True).click()
    await expect(page.locator(".problem")).to_have_count(0)
    complaints.clear()


async def test_a_refusal_is_told_in_the_worker_s_words_beside_its_countdown(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    scripted.refusals.append((503, {"retry-after": "60"}))
    scripted.reason = {"message": "The database is not responding. Try again in a moment."}
    page = await open_page(scripted.url)
    await ask(page, "Are you there?")
    await expect(page.locator(".problem p")).to_have_text("The database is not responding.")
    await expect(page.locator(".problem .button")).to_have_text(re.compile(r"Trying again in \d+ s"))
    complaints.clear()


async def test_a_refused_question_that_is_asked_again_leaves_what_was_answered_since(
    page: Page, worker: ScriptedWorker, complaints: list[str]
) -> None:
    worker.refusals.append((429, {"retry-after-ms": "2000"}))
    await ask(page, "First?")
    await expect(page.locator(".problem")).to_be_visible()
    await ask(page, "Second?")
    await expect(page.locator(".prose")).to_have_count(2)
    await expect(page.locator(".question > p")).to_have_text(["Second?", "First?"])
    assert [turn["input"] for turn in worker.turns] == ["First?", "Second?", "First?"]
    complaints.clear()


async def test_a_countdown_that_ends_during_an_answer_leaves_it_to_the_person(
    page: Page, worker: ScriptedWorker, complaints: list[str]
) -> None:
    told = asyncio.Event()

    async def slow(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("Hello")
        await told.wait()
        await stream.end_text("Hello.")
        await stream.complete()

    worker.refusals.append((429, {"retry-after-ms": "2000"}))
    worker.script = slow
    await ask(page, "First?")
    await expect(page.locator(".problem")).to_be_visible()
    await ask(page, "Second?")
    await expect(page.locator(".problem .button")).to_have_text("Try again")
    await expect(page.locator("#warning")).to_be_hidden()
    told.set()
    complaints.clear()


async def test_a_warning_goes_when_it_is_closed_and_when_something_else_is_done(
    page: Page, worker: ScriptedWorker, complaints: list[str]
) -> None:
    warning = page.locator("#warning")

    async def fail() -> None:
        broken = FilePayload(name="broken.json", mimeType="application/json", buffer=b"{")
        await page.locator("#import-file").set_input_files(files=[broken])
        await expect(warning).to_contain_text("is not JSON")

    await fail()
    await warning.get_by_role("button", name="Dismiss").click()
    await expect(warning).to_be_hidden()
    await fail()
    await ask(page, "Hello?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await expect(warning).to_be_hidden()
    await fail()
    await page.get_by_role("button", name="New conversation").click()
    await expect(warning).to_be_hidden()


async def test_a_broken_connection_keeps_the_text_and_offers_to_try_again(
    page: Page, worker: ScriptedWorker, complaints: list[str]
) -> None:
    async def broken(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("It was going w")

    worker.script = broken
    await ask(page, "Go on")
    await expect(page.locator(".problem")).to_contain_text("The connection was lost")
    await expect(page.locator(".prose")).to_have_text("It was going w")
    worker.script = hello
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await expect(page.locator(".question")).to_have_count(1)
    complaints.clear()


async def test_a_failed_answer_says_so(page: Page, worker: ScriptedWorker) -> None:
    async def failed(stream: Stream) -> None:
        error = {"code": "server_error", "message": "The engine stopped."}
        await stream.send("response.failed", response={"id": "resp_1", "status": "failed", "error": error})

    worker.script = failed
    await ask(page, "Hello?")
    await expect(page.locator(".problem")).to_contain_text("The engine stopped.")


async def test_an_answer_that_was_stopped_in_another_page_says_so(page: Page, worker: ScriptedWorker) -> None:
    async def stopped(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("It was going w")
        await stream.done()

    worker.script = stopped
    await ask(page, "Go on")
    await expect(page.locator(".note")).to_contain_text("Stopped")
    await expect(page.locator(".problem")).to_have_count(0)


async def test_an_answer_goes_on_after_the_connection_was_lost(page: Page, worker: ScriptedWorker) -> None:
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

    worker.script, worker.rest = broken, rest
    await ask(page, "Go on")
    await reconnected.wait()
    await expect(page.locator(".waiting")).to_have_text("Reconnecting", use_inner_text=True)
    await expect(page.locator(".prose")).to_have_text("It goes")
    told.set()
    await expect(page.locator(".prose")).to_have_text("It goes on.")
    await expect(page.get_by_role("button", name="Send the question")).to_be_visible()
    assert worker.resumed == [2]  # after response.created, the item and its first piece


async def test_a_silent_connection_is_given_up_and_one_offline_is_waited_for(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    async def silent(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("It goes ")
        await asyncio.Event().wait()

    async def rest(stream: Stream) -> None:
        await stream.text("on.")
        await stream.end_text("It goes on.")
        await stream.complete()

    scripted.script, scripted.rest = silent, rest
    page = await open_page("about:blank", own=True)
    await page.clock.install()
    await page.goto(scripted.url)
    await ask(page, "Go on")
    await expect(page.locator(".prose")).to_have_text("It goes")
    await page.context.set_offline(True)
    await page.clock.fast_forward("00:59")
    await expect(page.locator(".waiting")).to_have_text("Reconnecting", use_inner_text=True)
    for _ in range(9):  # more often than a browser tries that takes itself for online
        async with page.expect_event("requestfailed", lambda request: "/v1/responses/" in request.url):
            await page.clock.fast_forward("00:09")
    await expect(page.locator(".waiting")).to_have_text("Reconnecting", use_inner_text=True)
    await page.context.set_offline(False)
    await expect(page.locator(".prose")).to_have_text("It goes on.")
    assert scripted.resumed == [2]
    complaints.clear()  # the browser's, of each try


async def test_an_answer_goes_on_after_the_page_was_loaded_again(page: Page, worker: ScriptedWorker) -> None:
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

    worker.script, worker.rest = standing, whole
    await ask(page, "Go on")
    await expect(page.locator(".prose")).to_have_text("It goes")
    await page.reload()
    await expect(page.locator(".question p")).to_have_text("Go on")
    await expect(page.locator(".prose")).to_have_text("It goes on.")
    assert worker.resumed == [-1]
    worker.items = [message("Go on", "msg_0", "user"), message("It goes on.")]
    await page.reload()
    await expect(page.locator(".prose")).to_have_text("It goes on.")
    assert worker.resumed == [-1]  # nothing is left to wait for
