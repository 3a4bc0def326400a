"""From Enter to pixels, for a question about the documents: sent at once, and after its text stood still for a while.

    python -m benchmarks.enter [--model FILE] [--rounds 5] [--still 1] [--seconds 10] [--json FILE]

A headless Chromium types into the chat page of a worker on the same cores. Both ways alternate, each with questions of
its own and in a new conversation, so that no prompt is cached but what stands before the question. Then one client asks
one question after the other, alone and beside somebody who types and never sends: what do others lose?
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
from playwright.async_api import Page, async_playwright

from benchmarks.served import Served, served
from tests.pages.conftest import ARGUMENTS, NAMES

KEYS_MS = 30
QUESTIONS = (  # each with passages of its own
    "What is the default port?",
    "How long are traces kept?",
    "How do I create an API key?",
    "How are late requests refused?",
    "What is goodput?",
    "How do I share a conversation?",
    "Which formats of documents can be uploaded?",
    "How many streams run at once?",
    "What does the calculator do?",
    "How do I add a tool of my own?",
)
WARM_UP = "Who answers questions about the weather?"
SEARCH = {"type": "file_search", "vector_store_ids": ["docs"]}
OUTCOMES = ("firsttoken_engine_retrieval_ahead", "firsttoken_engine_draft_prefill")
PAINTED = """() => new Promise((done) => {
  const said = () => document.querySelector(".prose")?.textContent.trim();
  const look = () => (said() ? done(performance.now()) : requestAnimationFrame(look));
  document.getElementById("question").addEventListener("keydown", ({ timeStamp }) => (window.enter_ = timeStamp));
  look();
}).then((at) => at - window.enter_)"""


async def enter_ms(page: Page, url: str, question: str, still_s: float) -> float:
    await page.goto(url, wait_until="networkidle")
    await page.locator("#question").press_sequentially(question, delay=KEYS_MS)
    painted = asyncio.create_task(page.evaluate(PAINTED))
    await asyncio.sleep(still_s)
    await page.locator("#question").press("Enter")
    took_ms = float(await painted)
    cards = await page.locator(".source-card").count()
    await page.keyboard.press("Escape")  # the rest of the answer says nothing here
    await page.locator(".turn > .actions").wait_for()
    print(f"{took_ms:.0f} ms after {still_s} s with {cards} sources: {question}", file=sys.stderr)
    return took_ms


async def answered_a_second(http: aiohttp.ClientSession, seconds: float) -> float:
    """Characters of answers a second for one client that asks one question after the other."""
    chars, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        body = {"input": f"Count from {chars} to a hundred.", "max_output_tokens": 64, "temperature": 0, "store": False}
        async with http.post("/v1/responses", json=body) as answer:
            output = (await answer.json())["output"]
            chars += sum(len(item["content"][0]["text"]) for item in output if "content" in item)
    return chars / (time.monotonic() - began)


async def type_on(http: aiohttp.ClientSession) -> None:
    """Somebody whose keys rest again and again, and who never sends."""
    for number, question in enumerate(cycle(QUESTIONS)):
        for draft in ({"input": f"{question} ({number})"}, {}):
            async with http.post("/v1/conversations/warm", json={"tools": [SEARCH], **draft}):
                await asyncio.sleep(0.4 if draft else 0.1)


async def measure(flags: list[str], rounds: int, still_s: float, seconds: float) -> dict[str, Any]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise SystemExit("This benchmark needs Chromium: deploy/browser.sh installs it.")
    async with served(*flags) as worker, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        page = await browser.new_page(extra_http_headers=worker.headers)
        ms: dict[float, list[float]] = {0.0: [], still_s: []}
        await enter_ms(page, worker.url, WARM_UP, 0.0)
        for number, question in enumerate(QUESTIONS[: 2 * rounds]):
            rest_s = still_s if number % 4 in (1, 2) else 0.0
            ms[rest_s].append(await enter_ms(page, worker.url, question, rest_s))
        await browser.close()
        rates = await others(worker, seconds) if seconds else {}
        outcomes = await metrics(worker)
    cuts = {f"enter_ms_still_{rest_s:.0f}_s": [round(each) for each in sorted(taken)] for rest_s, taken in ms.items()}
    middle = {f"{name}_p50": round(statistics.median(taken)) for name, taken in cuts.items()}
    return {**cuts, **middle, **rates, **outcomes}


async def others(worker: Served, seconds: float) -> dict[str, Any]:
    alone, beside = [], []
    async with aiohttp.ClientSession(worker.url, headers=worker.headers) as http:
        for _ in range(3):
            alone.append(await answered_a_second(http, seconds))
            typing = asyncio.create_task(type_on(http))
            beside.append(await answered_a_second(http, seconds))
            typing.cancel()
    ratios = [round(after / before, 2) for before, after in zip(alone, beside, strict=True)]
    return {"others_beside_to_alone": ratios}


async def metrics(worker: Served) -> dict[str, str]:
    """What became of drafts."""
    async with aiohttp.ClientSession(worker.url, headers=worker.headers) as http, http.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return dict(line.split() for line in lines if line.startswith(OUTCOMES))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.enter", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=len(QUESTIONS) // 2)
    parser.add_argument("--still", type=float, default=1.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement of others; 0: none")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    flags = ["--model", str(options.model)] if options.model else []
    found = asyncio.run(measure(flags, options.rounds, options.still, options.seconds))
    print("\n".join(f"{name}: {value}" for name, value in found.items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
