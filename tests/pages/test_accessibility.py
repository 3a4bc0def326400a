"""What axe finds wrong with the pages: nothing. And what stays of them where people choose all colours themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from axe_playwright_python.async_playwright import Axe
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import Page, expect

from tests.pages.conftest import PHONE, OpenPage, ask, keep_screenshot
from tests.pages.scripted import TRACE, ScriptedWorker, Stream
from tests.pages.test_latency import Latency, latency

__all__ = ["latency"]

TEXT = r"""It covers the wait [1], **always**: \(t = n / r\).

```python
print("wait")  # code
```

| part | ms |
|---|--:|
| queue | 4 |
"""
# Whether an element's colour is one of its own and not one that the system put there.
HUES = """(nodes) => new Set(nodes.map((node) => getComputedStyle(node).backgroundColor)).size"""
# Of the rules that hold by default, two are about colours.
SCHEMES: Mapping[Literal["light", "dark"], dict[str, Any]] = {
    "light": {},
    "dark": {"runOnly": ["color-contrast", "link-in-text-block"]},
}
# It would bring its half megabyte along each time that it runs.
AXE = Axe(f"if (!window.axe) {{ {AXE_SCRIPT} }}")
# One row of a list says what all of them do.
ONCE = {"exclude": [".traces li:nth-child(n+4)"]}
STILL = "() => document.getAnimations().every(({ playState }) => playState !== 'running')"


async def check(page: Page, part: str | None = None) -> None:
    """`part`: the one that opened on a page without violations. In the dark all but the colours is as by day."""
    await expect(page.locator(".is-loading")).to_have_count(0)
    for scheme, rules in SCHEMES.items():
        await page.emulate_media(color_scheme=scheme)
        await page.wait_for_function(STILL)  # what fades in has its colours
        context = {**ONCE, "include": [part]} if part else ONCE
        results = await AXE.run(page, context, options={"resultTypes": ["violations"], **rules})
        assert results.violations_count == 0, (scheme, results.generate_report())


async def answer(stream: Stream) -> None:
    """With all that an answer can have."""
    await stream.sources()
    await stream.think("First the documents, then the sum.")
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "calculator", "arguments": ""}
    await stream.send("response.output_item.added", output_index=3, item={**call, "status": "in_progress"})
    done = {**call, "arguments": '{"expression": "6*7"}', "status": "completed"}
    await stream.send("response.output_item.done", output_index=3, item=done)
    result = {"id": "fo_1", "type": "function_call_output", "call_id": "call_1", "output": "42"}
    await stream.send("response.output_item.done", output_index=4, item=result)
    await stream.begin_text()
    await stream.text(TEXT)
    await stream.end_text(TEXT)
    await stream.send("firsttoken:trace", trace=TRACE)
    await stream.complete()


async def answered(page: Page) -> None:
    await expect(page.locator("#use-documents")).to_be_enabled()
    await ask(page, "What does the queue span cover?")
    await expect(page.locator(".timing")).to_be_visible()
    await expect(page.locator(".katex").first).to_be_visible()
    await expect(page.locator("code .hl-string")).to_be_visible()


async def test_no_state_of_the_chat_page_has_a_violation(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    scripted.script = answer
    page = await open_page(scripted.url, reduced_motion="reduce")
    await expect(page.locator("#use-documents")).to_be_enabled()
    await check(page)
    await answered(page)
    await page.locator("details").evaluate_all("(nodes) => nodes.forEach((node) => { node.open = true; })")
    await check(page)
    await page.locator(".cite").first.click()
    await expect(page.locator("#source mark")).to_be_visible()
    await check(page, "#source")
    await page.keyboard.press("Escape")
    for button, opened in (("Search", "#palette"), ("Add documents", "#documents"), ("Settings of", "#settings")):
        await page.get_by_role("button", name=button).click()
        await expect(page.locator(opened)).to_be_visible()
        await check(page, opened)
        await page.keyboard.press("Escape")


async def test_the_drawer_of_a_phone_has_no_violation(open_page: OpenPage, scripted: ScriptedWorker) -> None:
    page = await open_page(scripted.url, **PHONE, reduced_motion="reduce")
    await page.get_by_role("button", name="Open the list of conversations").click()
    await check(page)


async def test_no_state_of_the_latency_page_has_a_violation(open_page: OpenPage, latency: Latency) -> None:
    page = await open_page(f"{latency.url}?against=before", **latency.options, reduced_motion="reduce")
    await expect(page.locator(".traces li")).to_have_count(25)
    await expect(page.locator(".verdict")).to_be_visible()
    await check(page)
    for place, shown in (
        (f"trace/{latency.failed.id}", ".failures"),
        (f"compare/{latency.slow.id}/{latency.failed.id}", ".pair-table"),
    ):
        await page.goto(f"{latency.url}#/{place}")
        await expect(page.locator(shown)).to_be_visible()
        await check(page)


async def test_where_people_choose_all_colours_the_parts_of_a_bar_still_differ_and_what_is_on_shows_it(
    open_page: OpenPage, scripted: ScriptedWorker, latency: Latency
) -> None:
    scripted.script = answer
    page = await open_page(scripted.url, forced_colors="active")
    await answered(page)
    assert await page.locator(".timing .bar [data-span]").evaluate_all(HUES) >= 3
    toggle = page.locator("#use-tools")
    colour = "(node) => getComputedStyle(node).backgroundColor"
    on = await toggle.evaluate(colour)
    await toggle.click()
    await expect(toggle).to_have_attribute("aria-pressed", "false")
    assert await toggle.evaluate(colour) != on
    await keep_screenshot(page, "chat-forced-colours")
    ops = await open_page(f"{latency.url}#/trace/{latency.slow.id}", forced_colors="active", **latency.options)
    await expect(ops.locator(".waterfall")).to_be_visible()
    assert await ops.locator(".row.is-whole [data-span]").evaluate_all(HUES) >= 4
    await keep_screenshot(ops, "latency-trace-forced-colours")
    await ops.goto(latency.url)
    await expect(ops.locator(".traces li")).to_have_count(25)
    await keep_screenshot(ops, "latency-forced-colours")


async def test_a_phone_shows_an_answer_with_all_its_parts_without_sideways_scroll(
    open_page: OpenPage, scripted: ScriptedWorker
) -> None:
    scripted.script = answer
    page = await open_page(scripted.url, **PHONE)
    await answered(page)
    for width in (390, 360):
        await page.set_viewport_size({"width": width, "height": 740})
        assert await page.evaluate("() => document.documentElement.scrollWidth") == width
        assert await page.evaluate("() => document.querySelector('#send').getBoundingClientRect().right") <= width
        await keep_screenshot(page, f"phone-{width}")
