"""What one test leaves in the window that the next one gets: nothing."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Route

from tests.pages.conftest import Windows
from tests.pages.scripted import ScriptedWorker

OPTIONS: dict[str, Any] = {"viewport": {"width": 1000, "height": 700}}
LEFT = """() => [localStorage.length, sessionStorage.length, document.cookie, innerWidth,
    matchMedia("(prefers-color-scheme: dark)").matches]"""
LEAVE = """() => {
    localStorage.left = "something";
    sessionStorage.left = "something";
    document.cookie = "left=something";
}"""


async def refuse(route: Route) -> None:
    await route.abort()


async def test_a_window_is_handed_on_without_what_was_left_in_it(windows: Windows, scripted: ScriptedWorker) -> None:
    first = await windows.take(OPTIONS)
    await first.page.goto(f"{scripted.url}/shared")
    unused = await first.page.evaluate(LEFT)
    await first.page.evaluate(LEAVE)
    await first.page.emulate_media(color_scheme="dark")
    await first.page.set_viewport_size({"width": 400, "height": 700})
    assert await first.page.evaluate(LEFT) == [1, 1, "left=something", 400, True]
    await first.page.route("**/shared", refuse)
    await windows.take_back([first])
    second = await windows.take(OPTIONS)
    assert second is first
    await second.page.goto(f"{scripted.url}/shared")
    assert await second.page.evaluate(LEFT) == unused == [0, 0, "", 1000, False]
    await windows.take_back([second])


async def test_a_window_with_another_page_or_of_a_test_alone_is_not_handed_on(
    windows: Windows, scripted: ScriptedWorker
) -> None:
    first = await windows.take(OPTIONS)
    await first.page.goto(f"{scripted.url}/shared")
    await first.page.context.new_page()
    second = await windows.take(OPTIONS)
    await second.page.goto(f"{scripted.url}/shared")
    second.own = True
    await windows.take_back([first, second])
    third = await windows.take(OPTIONS)
    assert third not in (first, second)
    await windows.take_back([third])
