"""What can be done with a turn once it is there: copy, ask again, edit, look at its timing, delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pypdfium2
import pytest
from playwright.async_api import Page, Route, expect

from tests.pages.conftest import OpenPage, ask
from tests.pages.scripted import ScriptedWorker, Stream, hello, message

ANSWER = "Yes, **always**."


def stored_turn(n: int) -> list[dict[str, object]]:
    response_id = f"resp_{n}"
    question = message(f"Question {n}", f"msg_q{n}", role="user", response_id=response_id)
    return [question, message(ANSWER, f"msg_a{n}", response_id=response_id)]


@pytest.fixture
async def page(page: Page, worker: ScriptedWorker) -> AsyncIterator[Page]:
    """A conversation of two turns."""
    created = {"id": "conv_1", "object": "conversation", "created_at": 1.8e9, "metadata": {}}
    worker.conversations, worker.items = {"conv_1": created}, [*stored_turn(1), *stored_turn(2)]
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.goto(f"{worker.url}/#/c/conv_1")
    await expect(page.locator(".turn")).to_have_count(2)
    yield page
    await page.context.clear_permissions()


async def test_what_is_asked_while_the_conversation_is_on_its_way_stands_below_it(page: Page) -> None:
    arrives = asyncio.Event()

    async def slowly(route: Route) -> None:
        await arrives.wait()
        await route.continue_()

    await page.route("**/conv_1/items?*", slowly)
    await page.reload()
    await ask(page, "Another question")
    await expect(page.locator("#question")).to_have_value("")
    await expect(page.locator(".question")).to_have_text(["Another question"])
    await page.evaluate(  # and looked at again before it has arrived
        "() => { Date.now = ((now) => () => now() + 5000)(Date.now); dispatchEvent(new Event('focus')); }"
    )
    arrives.set()
    await expect(page.locator(".question p")).to_have_text(["Question 1", "Question 2", "Another question"])
    await expect(page.locator(".prose").last).to_have_text("Hello.")


async def test_what_is_asked_of_a_conversation_that_never_arrived_is_there_to_be_asked_again(page: Page) -> None:
    again = asyncio.Event()

    async def never(route: Route) -> None:
        await (route.continue_() if again.is_set() else asyncio.Event().wait())

    await page.route("**/conv_1/items?*", never)
    await page.reload()
    await ask(page, "Another question")
    await expect(page.locator(".question")).to_have_text(["Another question"])
    again.set()
    await page.reload()
    await expect(page.locator(".question p")).to_have_text(["Question 1", "Question 2", "Another question"])
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".prose").last).to_have_text("Hello.")


async def test_copy_gives_the_markdown_as_it_was_written(page: Page) -> None:
    await page.locator(".turn").last.get_by_role("button", name="Copy").last.click()
    assert await page.evaluate("() => navigator.clipboard.readText()") == ANSWER


RICH = """A **bold** word [1] and `code`.

1. one
2. two
   - inner

| a | b |
| - | - |
| 1 | 2 |

```python
print(1)
```"""
READABLE = "A bold word [1] and code.\n\n1. one\n2. two\n  - inner\n\na\tb\n1\t2\n\nprint(1)"


async def test_an_answer_is_copied_as_plain_text_and_shown_as_it_was_written(
    page: Page, worker: ScriptedWorker
) -> None:
    worker.items[-1]["content"][0]["text"] = RICH
    await page.reload()
    turn = page.locator(".turn").last
    more = turn.get_by_role("button", name="More about this answer")
    await more.click()
    await page.get_by_role("menuitem", name="Copy as plain text").click()
    await page.wait_for_function(
        "(text) => navigator.clipboard.readText().then((copied) => copied === text)", arg=READABLE
    )
    await more.click()
    await page.get_by_role("menuitem", name="Show Markdown source").click()
    await expect(turn.locator(".written")).to_have_text(RICH)
    await expect(turn.locator(".prose")).to_be_hidden()
    await more.click()
    await page.get_by_role("menuitem", name="Show formatted").click()
    await expect(turn.locator(".written")).to_have_count(0)
    await expect(turn.locator(".prose")).to_be_visible()


async def test_past_answers_have_no_fields_that_a_browser_looks_through(page: Page) -> None:
    turn = page.locator(".turn").last
    await expect(page.locator(".turn :is(form, input, textarea)")).to_have_count(0)
    await turn.get_by_role("button", name="Good answer").click()
    await expect(turn.get_by_label("Comment")).to_be_visible()
    await turn.get_by_role("button", name="Good answer").click()
    await expect(page.locator(".turn :is(form, input, textarea)")).to_have_count(0)


async def test_regenerate_keeps_the_earlier_answer_as_a_version(page: Page, worker: ScriptedWorker) -> None:
    await page.locator(".turn").last.get_by_role("button", name="Regenerate").click()
    await expect(page.locator(".prose").last).to_have_text("Hello.")
    await expect(page.locator(".question p")).to_have_text(["Question 1", "Question 2"])
    await expect(page.locator(".versions")).to_have_text("2 of 2")
    assert worker.branches == [{"after": "msg_a1"}]
    assert [turn["input"] for turn in worker.turns] == ["Question 2"]
    await page.get_by_role("button", name="Previous version").click()
    await expect(page.locator(".versions")).to_have_count(0)  # the page shows what the worker has
    assert worker.branches[1:] == [{"item_id": "msg_q2"}]
    assert worker.deleted == []


async def test_an_edited_question_takes_the_place_of_its_turn_and_what_follows(
    page: Page, worker: ScriptedWorker
) -> None:
    await page.locator(".question").first.hover()
    await page.get_by_role("button", name="Edit").first.click()
    await page.get_by_label("Edit the question").fill("Another question")
    await page.keyboard.press("Enter")
    await expect(page.locator(".question p")).to_have_text(["Another question"])
    await expect(page.locator(".prose")).to_have_text(["Hello."])
    assert worker.branches == [{"after": None}]
    assert worker.deleted == []


async def test_turns_are_not_changed_while_an_answer_is_written_and_an_edit_is_kept(
    page: Page, worker: ScriptedWorker
) -> None:
    released = asyncio.Event()

    async def slow(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("Well")
        await released.wait()
        await stream.end_text("Well")
        await stream.complete()

    worker.script = slow
    await ask(page, "A long one")
    await expect(page.locator(".prose").last).to_have_text("Well")
    await page.locator(".question").first.hover()
    await page.get_by_role("button", name="Edit").first.click()
    await page.get_by_label("Edit the question").fill("Another question")
    await page.keyboard.press("Enter")
    await expect(page.locator("#warning")).to_contain_text("An answer is being written.")
    await expect(page.get_by_label("Edit the question")).to_have_value("Another question")
    released.set()
    await expect(page.locator(".turn").last.get_by_role("button", name="Regenerate")).to_be_visible()
    worker.script = hello
    await page.get_by_label("Edit the question").press("Enter")
    await expect(page.locator(".question p")).to_have_text(["Another question"])


async def test_a_past_answer_shows_its_timing_and_leads_to_its_trace(page: Page) -> None:
    await page.locator(".turn").last.get_by_role("button", name="Timing").click()
    timing = page.locator(".turn").last.locator(".timing")
    await expect(timing).to_contain_text("60.0 ms of 100 ms (60%)")
    await expect(timing.get_by_role("link", name="Open the trace")).to_be_visible()
    await expect(page.locator(".turn").last.get_by_role("button", name="Timing")).to_have_count(0)


async def test_a_deleted_turn_is_gone_and_the_others_stay(page: Page, worker: ScriptedWorker) -> None:
    await page.locator(".turn").first.hover()
    await page.locator(".turn").first.get_by_role("button", name="Delete").click()
    await expect(page.locator(".question p")).to_have_text(["Question 2"])
    assert [item["id"] for item in worker.items] == ["msg_q2", "msg_a2"]


async def test_the_keyboard_finds_its_place_behind_what_it_changed(page: Page) -> None:
    first, question = page.locator(".turn").first, page.locator("#question")
    edit = first.get_by_role("button", name="Edit")
    await edit.press("Enter")
    await page.keyboard.press("Escape")
    await expect(edit).to_be_focused()
    await first.get_by_role("button", name="Delete").press("Enter")
    await expect(page.locator(".turn")).to_have_count(1)
    await expect(question).to_be_focused()
    await page.get_by_role("button", name="Regenerate").press("Enter")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await expect(question).to_be_focused()


async def test_a_conversation_is_printed_whole_and_in_dark_letters(page: Page, worker: ScriptedWorker) -> None:
    worker.items = [item for n in range(30) for item in stored_turn(n)]
    await page.reload()
    await expect(page.locator(".turn")).to_have_count(30)
    await page.emulate_media(media="print", color_scheme="dark")
    ink = await page.locator(".prose").first.evaluate("(node) => getComputedStyle(node).color")
    await page.emulate_media(media="null")
    assert ink == "rgb(31, 28, 24)"
    paper = pypdfium2.PdfDocument(await page.pdf(format="A4"))
    await page.emulate_media(color_scheme="null")
    printed = "".join(sheet.get_textpage().get_text_range() for sheet in paper)
    assert printed.count("Yes, always.") == 30
    assert "Ask a question" not in printed


async def test_a_turn_that_failed_is_asked_again_without_its_question_being_stored_twice(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    async def failed(stream: Stream) -> None:
        scripted.items = [message("Hello?", "msg_q", role="user", response_id="resp_1")]  # the worker keeps it
        error = {"code": "server_error", "message": "The engine stopped."}
        await stream.send("response.failed", response={"id": "resp_1", "status": "failed", "error": error})
        scripted.script = hello_again

    async def hello_again(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("Hello again.")
        await stream.end_text("Hello again.")
        await stream.complete()

    scripted.script = failed
    page = await open_page(scripted.url)
    await ask(page, "Hello?")
    await expect(page.locator(".problem")).to_contain_text("The engine stopped.")
    await page.reload()
    await expect(page.locator(".problem")).to_contain_text("This question was not answered.")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".prose")).to_have_text("Hello again.")
    await expect(page.locator(".question p")).to_have_text(["Hello?"])
    assert scripted.deleted == ["msg_q"]


async def test_an_answer_is_rated_with_a_word(page: Page, worker: ScriptedWorker) -> None:
    last = page.locator(".turn").last
    await last.get_by_role("button", name="Bad answer").click()
    await expect(last.get_by_role("button", name="Bad answer")).to_have_attribute("aria-pressed", "true")
    await last.get_by_label("Comment").fill("Not true.")
    await last.get_by_label("Comment").press("Enter")
    await expect(last.locator(".feedback")).to_contain_text("Thank you")
    about = {"response": "resp_2", "rating": "down"}
    assert worker.ratings == [about, {**about, "comment": "Not true."}]


async def test_a_pressed_thumb_is_still_pressed_after_a_reload(page: Page, worker: ScriptedWorker) -> None:
    for item in worker.items[2:]:
        item["firsttoken_feedback"] = {"rating": "up", "comment": None}
    await page.reload()
    thumbs = page.get_by_role("button", name="Good answer")
    await expect(thumbs.last).to_have_attribute("aria-pressed", "true")
    await expect(thumbs.first).to_have_attribute("aria-pressed", "false")
    await thumbs.last.click()  # and can be taken back
    await expect(thumbs.last).to_have_attribute("aria-pressed", "false")
    assert worker.ratings == [{"response": "resp_2", "rating": None}]
