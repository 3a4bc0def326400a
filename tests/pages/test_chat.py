"""The chat page against answers that the test writes event by event."""

from __future__ import annotations

import asyncio
import json
import re

from playwright.async_api import Page, expect

from tests.pages.conftest import PHONE, OpenPage, hello
from tests.pages.scripted import PASSAGE, ScriptedWorker, Stream, message

TRACE = {
    "id": "ab" * 16,
    "started_at": 1.8e9,
    "duration_ms": 100.0,
    "ttft_ms": 60.0,
    "tpot_ms": 10.0,
    "status": "completed",
    "surface": "chat",
    "model": "demo-chat",
    "response_id": "resp_1",
    "conversation_id": "conv_1",
    "attributes": {},
    "spans": [
        {
            "name": "prefill",
            "lane": "main",
            "parent": None,
            "start_ms": 0.0,
            "duration_ms": 60.0,
            "attributes": {"new_tokens": 30, "cached_tokens": 70},
        },
        {
            "name": "decode",
            "lane": "main",
            "parent": None,
            "start_ms": 60.0,
            "duration_ms": 20.0,
            "attributes": {"tokens": 5},
        },
        {
            "name": "tool:calculator",
            "lane": "tools",
            "parent": None,
            "start_ms": 80.0,
            "duration_ms": 12.5,
            "attributes": {},
        },
    ],
}


async def ask(page: Page, question: str) -> None:
    await page.locator("#question").fill(question)
    await page.locator("#question").press("Enter")


async def test_an_answer_streams_in_under_its_question(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    more = asyncio.Event()

    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("The first ")
        await more.wait()
        await stream.text("and the **last** words.")
        await stream.end_text("The first and the **last** words.")
        await stream.complete()

    scripted.script = answer
    page = await open_page(scripted.url)
    await ask(page, "What is it?")
    await expect(page.locator(".question")).to_have_text("What is it?")
    await expect(page.locator(".prose")).to_have_text("The first")
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()
    more.set()
    await expect(page.locator(".prose")).to_have_text("The first and the last words.")
    await expect(page.locator(".prose strong")).to_have_text("last")
    await expect(page.get_by_role("button", name="Send the question")).to_be_visible()


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


async def test_sources_stand_there_before_the_answer_and_open_at_the_cited_words(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    more = asyncio.Event()

    async def answer(stream: Stream) -> None:
        await stream.sources()
        await more.wait()
        await stream.begin_text()
        await stream.text("It covers the wait [1].")
        await stream.end_text("It covers the wait [1].")
        await stream.complete()

    scripted.script = answer
    page = await open_page(scripted.url)
    await ask(page, "What does the queue span cover?")
    await expect(page.locator(".source-card")).to_contain_text("Tracing: spans")
    await expect(page.locator(".prose")).to_have_count(0)
    more.set()
    await page.get_by_role("button", name="Source 1: Tracing: spans").click()
    await expect(page.locator("#source mark")).to_have_text(str(PASSAGE["text"]))
    await page.keyboard.press("Escape")
    await expect(page.locator("#source")).to_be_hidden()


async def test_a_tool_call_is_a_row_with_arguments_result_and_duration(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    async def answer(stream: Stream) -> None:
        call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "calculator"}
        arguments = json.dumps({"expression": "6 * 7"})
        started = {**call, "arguments": "", "status": "in_progress"}
        await stream.send("response.output_item.added", output_index=0, item=started)
        await stream.send("response.function_call_arguments.delta", item_id="fc_1", output_index=0, delta=arguments[:9])
        finished = {**call, "arguments": arguments, "status": "completed"}
        await stream.send("response.output_item.done", output_index=0, item=finished)
        output = {"id": "fco_1", "type": "function_call_output", "call_id": "call_1", "output": '{"result": 42}'}
        await stream.send("response.output_item.done", output_index=1, item=output)
        await stream.begin_text()
        await stream.text("It is 42.")
        await stream.end_text("It is 42.")
        await stream.send("firsttoken:trace", trace=TRACE)
        await stream.complete()

    scripted.script = answer
    page = await open_page(scripted.url)
    await ask(page, "What is 6 * 7?")
    step = page.locator(".step")
    await expect(step.locator(".step-time")).to_have_text("12.5 ms")
    await expect(step.locator(".step-preview")).to_have_text("6 * 742")  # asked, then the result
    await step.locator("summary").click()
    await expect(step.locator("pre").first).to_contain_text('"expression": "6 * 7"')
    await expect(step.locator("pre").last).to_contain_text('"result": 42')


async def test_the_timing_bar_says_where_the_time_went(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    async def answer(stream: Stream) -> None:
        await hello_with_trace(stream)

    scripted.script = answer
    page = await open_page(scripted.url)
    await ask(page, "Hello?")
    timing = page.locator(".timing")
    await expect(timing.locator("summary")).to_contain_text("First token 60.0 ms")
    await expect(timing.locator("summary")).to_contain_text("100 tokens/s")
    await timing.locator("summary").click()
    await expect(timing).to_contain_text("60.0 ms of 100 ms (60 %) went into reading the prompt, 30 new tokens.")
    await expect(timing).to_contain_text("70 of 100 prompt tokens came from the cache")
    names = await timing.locator(".legend-name").all_inner_texts()
    assert names == ["prefill", "decode", "tool:calculator", "between spans"]
    await expect(timing.get_by_role("link", name="Open the trace")).to_have_attribute(
        "href", f"/ops#/trace/{TRACE['id']}"
    )


async def hello_with_trace(stream: Stream) -> None:
    await stream.begin_text()
    await stream.text("Hello.")
    await stream.end_text("Hello.")
    await stream.send("firsttoken:trace", trace=TRACE)
    await stream.complete()


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
    await expect(page.locator(".problem")).to_contain_text("The connection broke")
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


async def test_reload_brings_the_conversation_back(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url)
    await ask(page, "Will you remember?")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    assert page.url.endswith("#/c/conv_1")
    scripted.items += [message("Will you remember?", "msg_0", role="user"), message("Yes, **always**.")]
    await page.reload()
    await expect(page.locator(".question")).to_have_text("Will you remember?")
    await expect(page.locator(".prose strong")).to_have_text("always")
    await expect(page.locator("[aria-current]")).to_have_text("Will you remember?")
    await expect(page).to_have_title("Will you remember? · Firsttoken")


async def test_an_answer_goes_on_while_another_conversation_is_shown(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    more = asyncio.Event()

    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("Slow")
        await more.wait()
        await stream.text(" but sure.")
        await stream.end_text("Slow but sure.")
        await stream.complete()

    scripted.script = answer
    page = await open_page(scripted.url)
    await ask(page, "Take your time")
    await expect(page.locator(".prose")).to_have_text("Slow")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator("#welcome")).to_be_visible()
    await page.get_by_role("link", name="Take your time").click()
    more.set()
    await expect(page.locator(".prose")).to_have_text("Slow but sure.")


async def test_a_conversation_can_be_renamed_and_deleted(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url)
    await ask(page, "First thought")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    row = page.locator(".conversation")
    await row.hover()
    await row.get_by_role("button", name="Rename").click()
    await page.get_by_label("New title").fill("Second thought")
    await page.keyboard.press("Enter")
    await expect(row.get_by_role("link")).to_have_text("Second thought")
    assert scripted.conversations["conv_1"]["metadata"] == {"title": "Second thought"}
    await row.hover()
    await row.get_by_role("button", name="Delete").click()
    await page.locator("dialog").get_by_role("button", name="Delete").click()
    await expect(page.locator(".conversation")).to_have_count(0)
    await expect(page.locator("#welcome")).to_be_visible()
    assert scripted.conversations == {}


async def test_a_conversation_that_is_gone_says_so(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    page = await open_page(f"{scripted.url}/#/c/conv_gone")
    await expect(page.locator(".problem")).to_contain_text("does not exist any more")
    complaints.clear()


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


async def test_what_is_written_is_announced_block_by_block(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("One.\n\nTwo.")
        await stream.end_text("One.\n\nTwo.")
        await stream.complete()

    scripted.script = answer
    page = await open_page(scripted.url)
    await ask(page, "Count")
    announcer = page.locator("#announcer")
    await expect(announcer).to_contain_text("Answer complete.")
    assert await announcer.locator("p").all_inner_texts() == ["One.", "Two.", "Answer complete."]


async def test_the_chosen_theme_is_remembered(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url, color_scheme="light")
    await page.get_by_role("button", name="Use the dark theme").click()
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
