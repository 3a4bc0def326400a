"""Whether answers are correct: the value, the citation, and declining if there is no answer.

    python -m benchmarks.answers [--cases 120] [--model NAME] [--json FILE]

Ingests a handbook of invented things into a worker and asks questions through POST /v1/responses with file_search, one
after another, with greedy sampling. Half of the questions have an answer in the handbook. Prints a Markdown table with
95 % confidence intervals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
from tqdm import tqdm

from benchmarks.answers.handbook import Case, Handbook, handbook
from benchmarks.answers.judge import Answer, Verdict, judge, shares
from benchmarks.served import Served, serve

STORE = "handbook"
ANSWER_TOKENS_MAX = 96


@asynccontextmanager
async def reader(book: Handbook, flags: Sequence[str]) -> AsyncIterator[Served]:
    """A worker that has ingested the handbook."""
    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-", ignore_cleanup_errors=True) as folder:
        home, documents = Path(folder), Path(folder) / "documents"
        book.write(documents)
        async with serve(home, "--docs", "", *flags) as worker:
            command = ["ingest", str(documents), "--store", STORE, "--home", str(home)]
            ingest = await asyncio.create_subprocess_exec(sys.executable, "-m", "worker", *command)
            if await ingest.wait():
                raise RuntimeError("the handbook could not be ingested")
            yield worker


async def chat_model(http: aiohttp.ClientSession, worker: Served) -> str:
    """The worker's name for it."""
    async with http.get(f"{worker.url}/v1/models", headers=worker.headers) as reply:
        reply.raise_for_status()
        return str((await reply.json())["data"][0]["id"])


async def ask(http: aiohttp.ClientSession, worker: Served, model: str, case: Case) -> Answer:
    body = {
        "model": model,
        "input": case.question,
        "tools": [{"type": "file_search", "vector_store_ids": [STORE]}],
        "include": ["file_search_call.results"],
        "temperature": 0,
        "max_output_tokens": ANSWER_TOKENS_MAX,
        "store": False,
    }
    async with http.post(f"{worker.url}/v1/responses", json=body, headers=worker.headers) as reply:
        reply.raise_for_status()
        output = (await reply.json())["output"]
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    results = [found for item in output if item["type"] == "file_search_call" for found in item["results"] or ()]
    return Answer(
        text="".join(part["text"] for part in parts),
        cited=tuple(mark["firsttoken_filename"] for part in parts for mark in part["annotations"]),
        given=tuple((found["filename"], found["text"]) for found in results),
    )


async def measure(book: Handbook, flags: Sequence[str]) -> dict[str, Any]:
    asked: list[dict[str, Any]] = []
    verdicts: dict[str, list[Verdict]] = {"answerable": [], "unanswerable": []}
    async with reader(book, flags) as worker, aiohttp.ClientSession() as http:
        model = await chat_model(http, worker)
        cases = [*(("answerable", case) for case in book.answerable), *(("unanswerable", c) for c in book.unanswerable)]
        for kind, case in tqdm(cases, unit=" questions", disable=None):
            answer = await ask(http, worker, model, case)
            verdicts[kind].append(judge(case, answer))
            asked.append({"case": asdict(case), "text": answer.text, "verdict": asdict(verdicts[kind][-1])})
    found = shares(**verdicts)
    print("| | share (95 %) | of |\n|---|---|---|")
    for name, share in found.items():
        print(f"| {name} | {share} | {share.of} |")
    return {"shares": {name: {"count": s.count, "of": s.of} for name, s in found.items()}, "asked": asked}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=120, help="questions of each kind (default 120)")
    parser.add_argument("--model", help="the worker's --model (default: the bundled model)")
    parser.add_argument("--json", type=Path, help="also write numbers and answers to this file")
    options = parser.parse_args()
    found = asyncio.run(measure(handbook(options.cases), ["--model", options.model] if options.model else []))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
