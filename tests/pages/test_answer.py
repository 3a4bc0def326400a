"""What an answer is made of on the page: text, sources, tool steps, timing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.pages.conftest import OpenPage, ask
from tests.pages.scripted import PASSAGE, TRACE, ScriptedWorker, Stream, hello, hello_with_trace, message, span


async def test_an_answer_streams_in_under_its_question(page: Page, worker: ScriptedWorker) -> None:
    more = asyncio.Event()

    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("The first ")
        await more.wait()
        await stream.text("and the **last** words.")
        await stream.end_text("The first and the **last** words.")
        await stream.complete()

    worker.script = answer
    await ask(page, "What is it?")
    await expect(page.locator(".question p")).to_have_text("What is it?")
    await expect(page.locator(".prose")).to_have_text("The first")
    await expect(page.locator("#title")).to_have_text("What is it?")
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()
    more.set()
    await expect(page.locator(".prose")).to_have_text("The first and the last words.")
    await expect(page.locator(".prose strong")).to_have_text("last")
    await expect(page.get_by_role("button", name="Send the question")).to_be_visible()


# Notes what moves by itself: each animation, and each transition, draws the page sixty times a second.
MOVES = """() => {
  window.moves = [];
  const note = ({ target }, what) => moves.push(`${target.id || target.className}: ${what}`);
  addEventListener("transitionrun", (event) => note(event, event.propertyName));
  addEventListener("animationstart", (event) => {
    const { animationDuration } = getComputedStyle(event.target, event.pseudoElement);
    if (animationDuration !== "0s") note(event, event.animationName);
  });
}"""


async def test_nothing_moves_from_the_question_to_the_end_of_the_answer(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    """Drawing takes the cores that compute the answer, where they are the same."""
    steps = [asyncio.Event() for _ in range(3)]
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "firsttoken:calculator"}

    async def answer(stream: Stream) -> None:
        await steps[0].wait()
        await stream.sources()
        await steps[1].wait()
        item = {**call, "arguments": "", "status": "in_progress"}
        await stream.send("response.output_item.added", output_index=1, item=item)
        await steps[2].wait()
        await stream.begin_text()
        await stream.text("Hello.")
        await stream.end_text("Hello.")
        await stream.complete()

    scripted.script = answer
    page = await open_page(scripted.url)
    await page.evaluate(MOVES)
    await ask(page, "Anything")
    await expect(page.locator(".waiting")).to_have_css("opacity", "1")
    for step, shown in zip(steps, (".source-card", ".step", ".prose"), strict=True):
        step.set()
        await expect(page.locator(shown)).to_be_visible()
    await expect(page.get_by_role("button", name="Send the question")).to_be_visible()
    assert await page.evaluate("() => window.moves") == []


# Notes in which order the page asks the worker, is laid out, and draws the list of conversations.
ORDER = """() => {
  window.order = [];
  const asks = window.fetch;
  window.fetch = (url, options) => {
    order.push(`${options.method} ${url}`);
    return asks(url, options);
  };
  Object.defineProperty(document.getElementById("question"), "scrollHeight", { get: () => order.push("layout") && 24 });
  new MutationObserver(() => order.push("list")).observe(document.getElementById("conversations"), { childList: true });
}"""


async def test_a_question_is_on_its_way_before_the_page_is_laid_out(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    scripted.script = hello
    page = await open_page(scripted.url)
    await page.locator("#question").fill("Anything")
    await page.evaluate(ORDER)
    await page.locator("#question").press("Enter")
    await expect(page.locator(".prose")).to_be_visible()
    await expect(page.locator(".conversation")).to_have_count(1)
    order = await page.evaluate("() => window.order")
    assert order[0] == "POST /v1/conversations" and "layout" in order
    assert order.index("POST /v1/responses") < order.index("list")


async def test_a_stream_may_be_cut_anywhere_and_hold_heartbeats(page: Page, worker: ScriptedWorker) -> None:
    async def answer(stream: Stream) -> None:
        stream.piece_bytes = 1
        await stream.write(b": ping\n\n")
        await stream.begin_text()
        await stream.text("Größe 😀 ")
        await stream.write(b": ping\r\n\r\n")
        await stream.send("somebody:else", note="ignored")
        await stream.text("データ")
        await stream.end_text("Größe 😀 データ")
        await stream.complete()

    worker.script = answer
    await ask(page, "Anything")
    await expect(page.locator("#announcer")).to_contain_text("Answer complete.")
    await expect(page.locator(".prose")).to_have_text("Größe 😀 データ")


async def test_sources_stand_there_before_the_answer_and_open_at_the_cited_words(
    page: Page, worker: ScriptedWorker
) -> None:
    more = asyncio.Event()

    async def answer(stream: Stream) -> None:
        await stream.sources()
        await more.wait()
        await stream.begin_text()
        await stream.text("It covers the wait [1].")
        await stream.end_text("It covers the wait [1].")
        await stream.complete()

    worker.script = answer
    await ask(page, "What does the queue span cover?")
    await expect(page.locator(".source-card")).to_contain_text("Tracing: spans")
    await expect(page.locator(".prose")).to_have_count(0)
    more.set()
    await page.get_by_role("button", name="Source 1: Tracing: spans").click()
    await expect(page.locator("#source mark")).to_have_text(str(PASSAGE["text"]))
    await expect(page.locator("#source .prose")).to_be_visible()  # Markdown is shown formatted
    await page.get_by_role("radio", name="Source text").check()
    await expect(page.locator("#source .prose")).to_have_count(0)
    await expect(page.locator("#source mark")).to_have_text(str(PASSAGE["text"]))
    await page.keyboard.press("Escape")
    await expect(page.locator("#source")).to_be_hidden()


async def test_a_tool_call_is_a_row_with_arguments_result_and_duration(page: Page, worker: ScriptedWorker) -> None:
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

    worker.script = answer
    await ask(page, "What is 6 * 7?")
    step = page.locator(".step")
    await expect(step.locator(".step-time")).to_have_text("12.5 ms")
    await expect(step.locator(".step-preview")).to_have_text("6 * 742")  # asked, then the result
    await step.locator("summary").click()
    await expect(step.locator("pre").first).to_contain_text('"expression": "6 * 7"')
    await expect(step.locator("pre").last).to_contain_text('"result": 42')


async def test_a_call_that_needs_approval_waits_for_the_person(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    asked = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "far", "name": "drop"}
    arguments = json.dumps({"path": "a.txt"})

    async def request(stream: Stream) -> None:
        for number in (1, 2):
            item = {**asked, "id": f"mcpr_{number}", "arguments": arguments}
            await stream.send("response.output_item.added", output_index=number, item=item)
            await stream.send("response.output_item.done", output_index=number, item=item)
        await stream.complete()

    async def run(stream: Stream) -> None:
        call = {"id": "mcp_1", "type": "mcp_call", "server_label": "far", "name": "drop"}
        done = {**call, "arguments": arguments, "approval_request_id": "mcpr_1", "output": "dropped", "error": None}
        await stream.send("response.output_item.added", output_index=0, item={**call, "arguments": ""})
        await stream.send("response.mcp_call_arguments.delta", item_id="mcp_1", output_index=0, delta=arguments)
        await stream.send("response.output_item.done", output_index=0, item=done)
        await stream.begin_text()
        await stream.text("It is gone.")
        await stream.end_text("It is gone.")
        await stream.complete()

    scripted.script = request
    page = await open_page(scripted.url)
    await page.get_by_role("button", name="Settings of this conversation").click()
    await page.get_by_label("Tool servers").fill("https://far.example/mcp")
    await page.get_by_role("button", name="Done").click()
    await ask(page, "Delete a.txt")
    await expect(page.locator(".approval h3").first).to_have_text("Use drop of far?")
    await expect(page.locator(".approval pre").first).to_contain_text("a.txt")
    scripted.script = run
    await page.get_by_role("button", name="Allow", exact=True).first.click()
    await page.get_by_role("button", name="Don't allow").click()
    await expect(page.locator(".prose")).to_have_text("It is gone.")
    await expect(page.locator(".step .step-name")).to_have_text("far: drop")
    await expect(page.locator(".step[data-state=done] .step-result")).to_have_text("dropped")
    assert await page.locator(".approval [role=status]").all_inner_texts() == ["Allowed", "Not allowed"]
    first, second = scripted.turns
    assert [tool for tool in first["tools"] if tool["type"] == "mcp"] == [
        {
            "type": "mcp",
            "server_label": "far_example",
            "server_url": "https://far.example/mcp",
            "require_approval": {"never": {"read_only": True}},
        }
    ]
    assert second["input"] == [
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_2", "approve": False},
    ]
    assert second["tools"] == first["tools"]
    scripted.script = request
    await ask(page, "Delete b.txt")
    await expect(page.locator(".approval[data-state=waiting]")).to_have_count(2)
    scripted.refusals.append((400, {}))
    for _ in range(2):
        await page.get_by_role("button", name="Don't allow").first.click()
    await page.locator(".problem").get_by_role("button", name="Delete").click()  # of a decision that did not arrive
    await expect(page.locator(".problem")).to_have_count(0)
    await expect(page.locator("#warning")).to_be_hidden()
    complaints.clear()


def answer_with(spans: Sequence[Mapping[str, object]]) -> Callable[[Stream], Awaitable[None]]:
    async def answer(stream: Stream) -> None:
        await stream.send("firsttoken:trace", trace={**TRACE, "spans": spans})
        await stream.complete()

    return answer


async def test_what_was_read_ahead_has_a_lane_below_the_bar(page: Page, worker: ScriptedWorker) -> None:
    spans = [
        span("retrieve", 0.0, 50.0),
        span("prefill", 50.0, 10.0, new_tokens=30, cached_tokens=70),
        span("prefill_prefix", 5.0, 40.0, lane="prefix", new_tokens=60, cached_tokens=10),
        span("decode", 60.0, 40.0, tokens=5),
    ]
    worker.script = answer_with(spans)
    await ask(page, "Which?")
    lanes = page.locator(".timing .lanes .bar")
    await expect(lanes).to_have_count(2)
    top, below = lanes.nth(0).locator("[data-span=retrieve]"), lanes.nth(1).locator("[data-span=prefill]")
    main, ahead = await top.bounding_box(), await below.bounding_box()
    assert main and ahead
    assert main["y"] + main["height"] <= ahead["y"], "it lies below"
    assert main["x"] < ahead["x"] < ahead["x"] + ahead["width"] < main["x"] + main["width"], "inside of retrieval"
    await page.locator(".timing > summary").click()
    await expect(page.locator(".timing")).to_contain_text("10 of 100 prompt tokens came from the cache")


async def test_the_time_before_an_answer_is_no_part_of_the_work(page: Page, worker: ScriptedWorker) -> None:
    spans = [
        span("prefill", 0.0, 20.0, new_tokens=30, cached_tokens=70),
        span("first_token", 20.0, 10.0, of="call"),
        span("first_answer", 0.0, 60.0, lane="answer"),
        span("decode", 60.0, 40.0, tokens=5),
    ]
    worker.script = answer_with(spans)
    await ask(page, "Which?")
    timing = page.locator(".timing")
    await timing.locator("> summary").click()
    await expect(timing).to_contain_text("Unaccounted for")
    await expect(timing).to_contain_text("Writing the name of a tool")
    await expect(timing.locator("[data-span=other]")).to_have_count(0)


async def test_the_timing_bar_says_where_the_time_went(page: Page, worker: ScriptedWorker) -> None:
    worker.script = hello_with_trace
    await ask(page, "Hello?")
    timing = page.locator(".timing")
    await expect(timing.locator("> summary")).to_contain_text("First token 60.0 ms")
    await expect(timing.locator("> summary")).to_contain_text("100 tokens/s")
    await timing.locator("> summary").click()
    await expect(timing).to_contain_text("60.0 ms of 100 ms (60%) was spent reading the prompt, 30 new tokens.")
    await expect(timing).to_contain_text("70 of 100 prompt tokens came from the cache")
    await expect(timing).to_contain_text(
        "The cache matched up to the system prompt, which changed since the last turn."
    )
    names = await timing.locator(".legend [data-name]").evaluate_all("(rows) => rows.map((row) => row.dataset.name)")
    assert names == ["prefill", "decode", "tool:calculator", "between spans"]
    await expect(timing.get_by_role("link", name="Open the trace")).to_have_attribute(
        "href", f"/ops#/trace/{TRACE['id']}"
    )


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


async def test_thoughts_are_folded_away_above_the_answer(page: Page, worker: ScriptedWorker) -> None:
    async def answer(stream: Stream) -> None:
        await stream.think("Hm, easy.")
        await stream.begin_text()
        await stream.text("Yes.")
        await stream.end_text("Yes.")
        await stream.complete()

    worker.script = answer
    await ask(page, "Is it?")
    await expect(page.locator(".prose")).to_have_text("Yes.")
    await expect(page.locator(".thought pre")).to_be_hidden()
    await page.get_by_text("Reasoning").click()
    await expect(page.locator(".thought pre")).to_have_text("Hm, easy.")


async def test_a_timing_tells_when_the_answer_began_behind_a_thought(page: Page, worker: ScriptedWorker) -> None:
    async def answer(stream: Stream) -> None:
        await stream.think("Hm.")
        await stream.begin_text()
        await stream.text("Yes.")
        await stream.end_text("Yes.")
        before: Any = TRACE["spans"]
        spans = [*before, span("first_answer", 0.0, 75.0, lane="answer")]
        await stream.send("firsttoken:trace", trace={**TRACE, "spans": spans})
        await stream.complete()

    worker.script = answer
    await ask(page, "Is it?")
    await expect(page.locator(".timing-numbers")).to_contain_text("Answer after 75.0 ms")


async def test_whoever_waits_may_have_the_answer_now(page: Page, worker: ScriptedWorker) -> None:
    async def answer(stream: Stream) -> None:
        await stream.think("Hm, not easy.", until=worker.hurried)
        await stream.begin_text()
        await stream.text("Yes.")
        await stream.end_text("Yes.")
        await stream.complete()

    worker.script = answer
    await ask(page, "Is it?")
    button = page.get_by_role("button", name="Answer now")
    await button.click()
    await expect(page.locator(".prose")).to_have_text("Yes.")
    await expect(button).to_be_hidden()


async def test_a_turn_that_ends_behind_its_thought_says_so_and_can_be_asked_again(
    page: Page, worker: ScriptedWorker
) -> None:
    async def nothing(stream: Stream) -> None:
        await stream.think("Hm.")
        await stream.begin_text()
        await stream.end_text("")
        await stream.complete()

    worker.script = nothing
    await ask(page, "Is it?")
    await expect(page.get_by_role("alert")).to_contain_text("was not answered")
    worker.script = hello
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await expect(page.locator(".question")).to_have_count(1)


async def test_what_is_said_while_an_answer_is_written_ends_it_and_is_answered_next(
    page: Page, worker: ScriptedWorker
) -> None:
    ends = asyncio.Event()

    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("One, two,")
        await ends.wait()
        await stream.end_text("One, two,")
        details = {"reason": "steered", "firsttoken:cut": "steered"}
        response = {"id": "resp_1", "status": "incomplete", "incomplete_details": details}
        await stream.send("response.incomplete", response=response)
        await stream.done()

    async def successor(stream: Stream) -> None:
        await stream.send("response.created", response={"id": "resp_2", "status": "in_progress"})
        await hello(stream)

    worker.script, worker.rest = answer, successor
    question = page.locator("#question")
    await ask(page, "Count.")
    await expect(page.locator(".prose")).to_have_text("One, two,")
    await expect(page.get_by_role("button", name="Stop the answer")).to_be_visible()
    for said in ("In French.", "Please."):
        await question.fill(said)
        await expect(page.get_by_role("button", name="Send the question")).to_be_visible()
        await question.press("Enter")
        await expect(question).to_have_value("")
        await expect(page.locator(".heard").last).to_have_text(f"You said: {said}")
    ends.set()
    await expect(page.locator(".prose")).to_have_text(["One, two,", "Hello."])
    await expect(page.locator(".question p")).to_have_text(["Count.", "In French.\n\nPlease."])
    await expect(page.locator(".heard:visible")).to_have_count(0)
    assert worker.said == ["In French.", "Please."]


@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("over", [True, False])
async def test_what_is_said_to_an_answer_survives_a_reload(
    page: Page, worker: ScriptedWorker, arrived: bool, over: bool
) -> None:
    """The answer may have ended meanwhile, and the worker may not have heard it."""

    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("One, two,")
        await asyncio.Event().wait()

    async def rest(stream: Stream) -> None:
        id = "resp_1" if not over and len(worker.resumed) == 1 else "resp_2"
        await stream.send("response.created", response={"id": id, "status": "in_progress"})
        await hello(stream)

    worker.script, worker.rest = answer, rest
    await ask(page, "Count.")
    await expect(page.locator(".prose")).to_have_text("One, two,")
    await page.locator("#question").fill("In French.")
    await page.locator("#question").press("Enter")
    await expect(page.locator(".heard")).to_have_text("You said: In French.")
    successor = {"firsttoken_successor": "resp_2"} if arrived else {}
    worker.states["resp_1"] = {"status": "incomplete" if over else "in_progress", **successor}
    if over:
        worker.items = [
            message("Count.", "msg_0", "user", response_id="resp_1"),
            message("One,", response_id="resp_1"),
        ]
    await page.reload()
    await expect(page.locator(".question p")).to_have_text(["Count.", "In French."])
    if over and not arrived:
        await expect(page.get_by_role("button", name="Try again")).to_be_visible()
    else:
        await expect(page.locator(".prose").last).to_have_text("Hello.")
    assert worker.said == ["In French."] * (1 if arrived or over else 2)


def until_heard(scripted: ScriptedWorker) -> Callable[[Stream], Awaitable[None]]:
    """An answer that ends once something is said to it."""

    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("One, two,")
        await scripted.heard.wait()
        await stream.end_text("One, two,")
        await stream.complete()

    return answer


async def test_what_is_said_to_an_answer_that_has_just_ended_is_the_next_question(
    page: Page, worker: ScriptedWorker, complaints: list[str]
) -> None:
    worker.script, worker.over = until_heard(worker), True
    await ask(page, "Count.")
    await expect(page.locator(".prose")).to_have_text("One, two,")
    await ask(page, "In French.")
    await expect(page.locator(".prose")).to_have_count(2)
    assert [turn["input"] for turn in worker.turns] == ["Count.", "In French."]
    assert all("409" in text for text in complaints)
    complaints.clear()


async def test_what_is_said_just_before_an_answer_ends_is_not_asked_again(page: Page, worker: ScriptedWorker) -> None:
    worker.script, worker.rest, worker.replies = until_heard(worker), hello, asyncio.Event()
    await ask(page, "Count.")
    await expect(page.locator(".prose")).to_have_text("One, two,")
    await ask(page, "In French.")
    await expect(page.get_by_role("button", name="Send the question")).to_be_visible()
    worker.replies.set()
    await expect(page.locator(".prose").last).to_have_text("Hello.")
    assert [turn["input"] for turn in worker.turns] == ["Count."]


async def test_what_was_said_to_an_answer_that_is_stopped_can_be_asked_again(
    page: Page, worker: ScriptedWorker
) -> None:
    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("One, two,")
        await asyncio.Event().wait()

    worker.script = answer
    await ask(page, "Count.")
    await expect(page.locator(".prose")).to_have_text("One, two,")
    await ask(page, "In French.")
    await expect(page.locator(".heard").last).to_have_text("You said: In French.")
    await page.get_by_role("button", name="Stop the answer").click()
    await expect(page.locator(".question p")).to_have_text(["Count.", "In French."])
    await expect(page.locator(".turn").last).to_contain_text("This question was not answered.")


async def test_sources_that_an_answer_does_not_cite_are_pointed_at(page: Page, worker: ScriptedWorker) -> None:
    async def declines(stream: Stream) -> None:
        await stream.sources()
        await stream.begin_text()
        await stream.text("I could not find that.")
        await stream.end_text("I could not find that.")
        await stream.complete()

    worker.script = declines
    await ask(page, "What is the queue?")
    await expect(page.locator(".sources h2")).to_have_text("1 source: none cited, but one may hold the answer")


async def test_a_source_shows_words_instead_of_markdown(page: Page, worker: ScriptedWorker) -> None:
    async def answer(stream: Stream) -> None:
        rows = "| a | b |\n|---|---|\n| 1 | 2 |\n\nOf one without its head:\n\n| `c` | d |\n| e | f |"
        passage = {**PASSAGE, "text": f"## Head\n\nSome **bold**\n`code`.\n\n```\nx\n```\n\n{rows}"}
        await stream.send("firsttoken:sources", response_id="resp_1", output_index=0, passages=[passage])
        await stream.begin_text()
        await stream.end_text("")
        await stream.complete()

    worker.script = answer
    await ask(page, "What is it?")
    words = "Head Some bold code. x a · b · 1 · 2 Of one without its head: c · d · e · f"
    await expect(page.locator(".source-text")).to_have_text(words)
