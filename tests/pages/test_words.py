"""What somebody has written is never lost: drafts, refused questions, long pastes; and the keyboard finds its place."""

from __future__ import annotations

import asyncio
import re

from playwright.async_api import Page, Route, expect

from tests.pages.conftest import OpenPage, ask
from tests.pages.scripted import ScriptedWorker, Stream, message


async def test_a_draft_survives_a_reload_and_belongs_to_its_conversation(page: Page, worker: ScriptedWorker) -> None:
    question = page.locator("#question")
    await ask(page, "First")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await question.fill("half a thou")
    await page.reload()
    await expect(question).to_have_value("half a thou")
    await page.get_by_role("button", name="New conversation").click()
    await expect(question).to_have_value("")
    await page.get_by_role("link", name="First", exact=True).click()
    await expect(question).to_have_value("half a thou")
    await question.press("Enter")
    await expect(page.locator(".prose")).to_have_count(1)
    await page.reload()
    await expect(question).to_have_value("")


async def test_what_is_typed_while_the_page_is_on_its_way_stays(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    arrives = asyncio.Event()

    async def slowly(route: Route) -> None:
        await arrives.wait()
        await route.continue_()

    page = await open_page("about:blank")
    await page.route("**/chat/main.js", slowly)
    await page.goto(scripted.url, wait_until="commit")
    await page.locator("#question").fill("Are you there?")
    await page.locator("#send").click(no_wait_after=True)  # nobody listens yet
    arrives.set()
    await expect(page.get_by_role("button", name="Send the question")).to_be_visible()
    await expect(page.locator("#question")).to_have_value("Are you there?")
    assert page.url == f"{scripted.url}/"
    await page.reload()
    await expect(page.locator("#question")).to_have_value("Are you there?")


async def test_a_question_that_was_refused_is_there_after_a_reload(
    page: Page, worker: ScriptedWorker, complaints: list[str]
) -> None:
    worker.refusals.append((400, {}))
    await ask(page, "Too much")
    await expect(page.locator(".problem")).to_contain_text("Refused with 400.")
    await page.reload()
    await expect(page.locator(".question p")).to_have_text("Too much")
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".prose")).to_have_text("Hello.")
    assert [turn["input"] for turn in worker.turns] == ["Too much", "Too much"]
    complaints.clear()


async def test_every_question_that_did_not_arrive_stays_until_it_is_asked_again_or_deleted(
    open_page: OpenPage, scripted: ScriptedWorker, complaints: list[str]
) -> None:
    async def ask_offline(*questions: str) -> None:
        await page.context.set_offline(True)
        problems = page.locator(".problem")
        for question in questions:
            before = await problems.count()
            await ask(page, question)
            await expect(problems).to_have_count(before + 1)
        await page.context.set_offline(False)

    def store(n: int, question: str) -> None:
        scripted.items += [
            message(question, f"q{n}", "user", f"resp_{n}"),
            message("Yes.", f"a{n}", "assistant", f"resp_{n}"),
        ]

    page = await open_page(scripted.url, own=True)
    asked = page.locator(".question p")
    await ask_offline("One?", "Two?")
    await page.reload()  # there is no conversation yet that they could stand in
    await expect(page.locator("#question")).to_have_value("One?\n\nTwo?")
    await page.locator("#question").press("Enter")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    store(1, "One?\n\nTwo?")
    await ask_offline("Three?", "Four?", "Five?")
    await ask(page, "Six?")
    await expect(page.locator(".prose")).to_have_count(2)
    store(2, "Six?")
    store(3, "Five?")  # it did arrive, only the connection was lost then
    await page.reload()
    await expect(asked).to_have_text(["One? Two?", "Six?", "Five?", "Three?", "Four?"])
    await page.locator(".turn", has_text="Three?").get_by_role("button", name="Delete").click()
    await expect(asked).to_have_count(4)
    await page.get_by_role("button", name="Try again").click()
    await expect(page.locator(".prose").last).to_have_text("Hello.")
    await page.reload()
    await expect(asked).to_have_text(["One? Two?", "Six?", "Five?"])
    complaints.clear()  # the browser's, of what did not arrive


async def test_a_long_paste_is_sent_whole_and_what_is_too_long_says_the_limit(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    page = await open_page(scripted.url)
    # Where these letters break into lines is not what is tested, and takes a browser seconds.
    await page.locator("#question").evaluate("(field) => { field.style.fontSize = 0; }")
    await page.locator("#question").fill("x" * 1_000_001)
    await expect(page.locator("#limit")).to_have_text("1,000,001 characters. A question has at most 1,000,000.")
    await page.locator("#question").press("Enter")
    await expect(page.locator("#question")).to_have_value(re.compile("^x{1000001}$"))
    await ask(page, "y" * 30_000)
    await expect(page.locator(".prose")).to_have_text("Hello.")
    assert [len(turn["input"]) for turn in scripted.turns] == [30_000]


async def test_the_question_has_the_focus_and_slash_brings_it_back(page: Page, worker: ScriptedWorker) -> None:
    question = page.locator("#question")
    await expect(question).to_be_focused()
    await question.blur()
    await page.keyboard.press("/")
    await expect(question).to_be_focused()
    await page.keyboard.press("/")
    await expect(question).to_have_value("/")


async def test_escape_stops_the_answer_wherever_the_focus_is(page: Page, worker: ScriptedWorker) -> None:
    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        await stream.text("Half")
        await asyncio.Event().wait()

    worker.script = answer
    await ask(page, "Something long")
    await expect(page.locator(".prose")).to_have_text("Half")
    await page.locator("#question").blur()
    await page.keyboard.press("Escape")
    await expect(page.locator(".note")).to_contain_text("Stopped")
    assert worker.cancelled == ["resp_1"]


LONG = "Some long text. " * 400


async def paste(page: Page, text: str) -> None:
    await page.locator("#question").evaluate(
        """(field, text) => {
          const clipboardData = new DataTransfer();
          clipboardData.setData("text/plain", text);
          field.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
        }""",
        text,
    )


async def test_a_pasted_file_is_part_of_the_draft_of_its_conversation(page: Page, worker: ScriptedWorker) -> None:
    files, question = page.locator("#pastes li"), page.locator("#question")
    await ask(page, "Pasted")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await paste(page, LONG)
    await expect(question).to_have_attribute("placeholder", "Ask about the pasted text")
    await question.fill("Sum it up")
    await page.get_by_role("button", name="New conversation").click()
    await expect(files).to_have_count(0)
    await expect(question).to_have_attribute("placeholder", "Ask a question")
    await page.get_by_role("link", name="Pasted", exact=True).click()
    await expect(files).to_have_count(1)
    await page.reload()
    await expect(files).to_contain_text("pasted text.txt")
    await expect(question).to_have_value("Sum it up")
    await paste(page, LONG)
    await page.get_by_role("button", name="Remove pasted text.txt").click()
    await expect(question).to_be_focused()
    await paste(page, LONG)
    await expect(files.locator(".file-name")).to_have_text(["pasted text 2.txt", "pasted text.txt"])
    await page.get_by_role("button", name="Remove pasted text 2.txt").click()
    await question.press("Enter")
    await expect(page.locator(".prose")).to_have_count(1)
    assert worker.turns[-1]["input"] == f"Sum it up\nFile pasted text.txt:\n{LONG}"
    await expect(files).to_have_count(0)


async def test_of_a_draft_that_is_too_long_to_keep_the_question_is_kept(page: Page, worker: ScriptedWorker) -> None:
    await paste(page, "x" * 100_001)
    await page.locator("#question").fill("What is this?")
    await page.reload()
    await expect(page.locator("#question")).to_have_value("What is this?")


async def test_two_tabs_keep_the_drafts_of_both(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    first = await open_page(scripted.url)
    await ask(first, "First")
    await expect(first.locator(".prose")).to_have_text("Hello.")
    second = await first.context.new_page()
    await second.goto(scripted.url)
    for page, text in ((first, "of the first"), (second, "of the second"), (first, "of the first tab")):
        await page.locator("#question").fill(text)
        kept = "(text) => localStorage.getItem('firsttoken.drafts')?.includes(`${text}\"`)"
        await page.wait_for_function(kept, arg=text)
    await first.close()
    await second.reload()
    await expect(second.locator("#question")).to_have_value("of the second")
    await second.get_by_role("link", name="First", exact=True).click()
    await expect(second.locator("#question")).to_have_value("of the first tab")


async def test_a_full_storage_loses_nothing_while_the_page_is_open(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    page = await open_page(scripted.url)
    await ask(page, "First")
    await expect(page.locator(".prose")).to_have_text("Hello.")
    await page.evaluate(
        """() => {
          let piece = "x".repeat(1 << 20);
          for (let n = 0; piece; ) {
            try { localStorage.setItem(`other${n++}`, piece); } catch { piece = piece.slice(1 + piece.length / 2); }
          }
        }"""
    )
    await page.locator("#question").fill("half a thou")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator("#question")).to_have_value("")
    await page.get_by_role("link", name="First", exact=True).click()
    await expect(page.locator("#question")).to_have_value("half a thou")


async def test_what_another_version_has_kept_does_not_break_the_page(page: Page, worker: ScriptedWorker) -> None:
    for kept in ("{", "7", "[7, [null]]", '{"question": 7}'):
        await ask(page, "Begun")
        await expect(page.locator(".prose")).to_have_text("Hello.")
        conversation = page.url.rpartition("/")[2]
        await page.evaluate(
            "([kept, id]) => ['drafts', 'presets', `running.${id}`, `unsent.${id}`, 'unsent.null']"
            ".map((n) => localStorage.setItem(`firsttoken.${n}`, kept))",
            [kept, conversation],
        )
        await page.reload()
        await expect(page.locator(".turn")).to_have_count(0)
        await ask(page, "Second")
        await expect(page.locator(".prose")).to_have_text("Hello.")
        await page.get_by_role("button", name="New conversation").click()
        await expect(page.locator(".turn")).to_have_count(0)
