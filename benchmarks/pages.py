"""What the web pages cost a browser: bytes, first paint, token-to-pixel latency, long tasks, frame rate.

    python -m benchmarks.pages [--turns 200] [--tokens 2000] [--long 5000] [--rate 200] [--json FILE]

A headless Chromium on this machine (no GPU) and a worker that sends tokens at a fixed rate share the same cores; a
token's latency includes the worker's write and the loopback. Frames are those of requestAnimationFrame, at most 60 per
second. The CPU time of the page's thread per frame does not depend on the load of the machine: below 16 ms, the page
can draw 60 frames per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, CDPSession, Page, async_playwright

from tests.pages.conftest import ARGUMENTS, NAMES
from tests.pages.scripted import ScriptedWorker, Stream, hello, message, serving

PARAGRAPH_TOKENS = 60
SHAPES: Mapping[str, tuple[str, str]] = {  # how an answer begins, and what separates its parts
    "paragraphs": ("", ".\n\n"),
    "list": ("- ", ".\n- "),
    "code": ("```python\n", "\n"),
}
LONG_TASK_MS = 50  # the browsers' definition
# Records the number of tokens in the page after each painted frame, and every long task.
WATCH = """
() => {
  window.frames_ = [];
  window.tasks_ = [];
  new PerformanceObserver((list) => window.tasks_.push(...list.getEntries().map((each) => each.duration)))
    .observe({ type: "longtask" });
  const channel = new MessageChannel();
  const count = () => (document.querySelector(".turn:last-child .prose")?.textContent.match(/t\\d+/g) ?? []).length;
  channel.port1.onmessage = () => {
    window.frames_.push([performance.timeOrigin + performance.now(), count()]);
    requestAnimationFrame(() => channel.port2.postMessage(null));
  };
  requestAnimationFrame(() => channel.port2.postMessage(null));
}
"""
# Resolves once the page has been idle for a second: its initial content is drawn.
RESTED = """
() => new Promise((done) => {
  let since = performance.now();
  const look = ({ didTimeout }) => {
    if (didTimeout) since = performance.now();
    if (performance.now() - since > 1000) done();
    else requestIdleCallback(look, { timeout: 200 });
  };
  requestIdleCallback(look, { timeout: 200 });
})
"""


@dataclass(frozen=True, slots=True)
class Load:
    """A first visit: bytes on the wire, and the first contentful paint."""

    page: str
    requests: int
    kilobytes: float
    first_paint_ms: float


@dataclass(frozen=True, slots=True)
class Streaming:
    shape: str
    tokens: int
    turns_before: int
    tokens_per_s: float
    token_to_pixels_p50_ms: float
    token_to_pixels_p95_ms: float
    frames_per_s: float
    thread_ms_a_frame: float
    long_tasks: int
    longest_task_ms: float


async def load(browser: Browser, worker: ScriptedWorker, path: str) -> Load:
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    page = await context.new_page()
    sizes: list[int] = []
    network = await context.new_cdp_session(page)
    network.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    await network.send("Network.enable")
    await page.goto(worker.url + path, wait_until="networkidle")
    entry = "performance.getEntriesByName('first-contentful-paint')[0]"
    await page.wait_for_function(f"() => {entry} !== undefined")
    painted = await page.evaluate(f"() => {entry}.startTime")
    await context.close()
    return Load(path, len(sizes), round(sum(sizes) / 1e3, 1), round(painted, 1))


async def stream(
    browser: Browser, worker: ScriptedWorker, turns: int, tokens: int, rate: float, shape: str = "paragraphs"
) -> Streaming:
    sent_ms: list[float] = []
    begins, between = SHAPES[shape]

    async def answer(stream: Stream) -> None:
        await stream.begin_text()
        if begins:
            await stream.text(begins)
        started = time.monotonic()
        for number in range(tokens):
            await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
            sent_ms.append(time.time() * 1e3)
            end = between if number % PARAGRAPH_TOKENS == PARAGRAPH_TOKENS - 1 else " "
            await stream.text(f"t{number}{end}")
        await stream.end_text("")
        await stream.complete()

    worker.script = answer
    worker.conversations["conv_1"] = {"id": "conv_1", "object": "conversation", "created_at": 1.8e9, "metadata": {}}
    worker.items = [item for number in range(turns) for item in past_turn(number)]
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    page = await context.new_page()
    await page.goto(f"{worker.url}/#/c/conv_1", wait_until="networkidle")
    await page.evaluate(RESTED)
    await page.locator("#question").fill("Go on")
    await page.evaluate(WATCH)
    clock = await context.new_cdp_session(page)
    await clock.send("Performance.setTimeDomain", {"timeDomain": "threadTicks"})
    await clock.send("Performance.enable")
    began_s = await thread_s(clock)
    await page.locator("#question").press("Enter")
    await page.locator(".turn:last-child > .actions").wait_for(timeout=60_000 + 2e3 * tokens / rate)
    spent_s = await thread_s(clock) - began_s
    found = await told(page)
    await context.close()
    return summed((shape, tokens, turns, rate), spent_s, sent_ms, found["frames"], found["tasks"])


async def thread_s(clock: CDPSession) -> float:
    """CPU time of the page's thread."""
    metrics = (await clock.send("Performance.getMetrics"))["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


async def told(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = await page.evaluate("() => ({ frames: window.frames_, tasks: window.tasks_ })")
    return found


def past_turn(number: int) -> list[dict[str, Any]]:
    words = " ".join(f"word {word} of **many**" for word in range(40))
    text = f"{words}\n\n- one\n- two\n\n```python\nprint({number})\n```\n"
    ids = {"response_id": f"resp_{number}"}
    return [message(f"Question {number}", f"msg_q{number}", "user", **ids), message(text, f"msg_a{number}", **ids)]


def summed(
    case: tuple[str, int, int, float],
    thread_s: float,
    sent_ms: list[float],
    frames: list[list[float]],
    tasks: list[float],
) -> Streaming:
    """Summarize a recording. A frame is [Unix time in ms, tokens in the page]."""
    writing = [frame for frame in frames if frame[1] > 0 and frame[0] <= sent_ms[-1]]
    waits, at = [], 0
    for number, sent in enumerate(sent_ms):
        while at < len(frames) and frames[at][1] <= number:
            at += 1
        if at < len(frames):
            waits.append(frames[at][0] - sent)
    cuts = statistics.quantiles(waits, n=20)
    spent_s = (writing[-1][0] - writing[0][0]) / 1e3
    long = [task for task in tasks if task >= LONG_TASK_MS]
    return Streaming(
        *case,
        *(round(cuts[9], 1), round(cuts[18], 1), round((len(writing) - 1) / spent_s, 1)),
        round(1e3 * thread_s / len(frames), 1),
        *(len(long), round(max(long, default=0.0), 1)),
    )


async def measure(turns: int, tokens: int, long: int, rate: float) -> dict[str, list[dict[str, Any]]]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise SystemExit("This benchmark needs Chromium: deploy/browser.sh installs it.")
    async with serving(ScriptedWorker(hello)) as worker, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        loads = [await load(browser, worker, page) for page in ("/", "/ops")]
        streams = [await stream(browser, worker, before, tokens, rate) for before in (0, turns)]
        streams += [await stream(browser, worker, 0, long, rate, shape) for shape in SHAPES if long]
        await browser.close()
    return {"loads": [asdict(each) for each in loads], "streams": [asdict(each) for each in streams]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--long", type=int, default=5000, help="tokens of the long answer in each shape; 0: none")
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = asyncio.run(measure(options.turns, options.tokens, options.long, options.rate))
    for rows in found.values():
        print("  ".join(f"{name:>22}" for name in rows[0]))
        for row in rows:
            print("  ".join(f"{value!s:>22}" for value in row.values()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
