"""What ingesting documents costs concurrent chats, and how fast it is.

    python -m benchmarks.ingest [--rounds 8] [--json FILE]

Starts a worker with the bundled models. One client streams answers, alternately with and without a batch of files that
the worker ingests at the same time. The time per token of a round with an ingest is compared with the rounds before and
after it. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter

from openai import AsyncOpenAI

from benchmarks.engine.measures import percentile
from benchmarks.engine.prompts import words
from benchmarks.served import serve

FILES, PARAGRAPHS, SENTENCE = 4, 40, "This paragraph speaks of{}, and of nothing else that anybody would look for."
TOKENS = 64
QUESTION = "Count from one upwards, and do not stop."


@dataclass(frozen=True, slots=True)
class Round:
    """The gaps between tokens in milliseconds, and the passages ingested meanwhile, with the seconds it took."""

    gaps_ms: list[float]
    chunks: int = 0
    seconds: float = 0.0

    @property
    def tpot_ms(self) -> float:
        return statistics.mean(self.gaps_ms)


def document(number: int) -> bytes:
    """A text that was not ingested before."""
    paragraphs = [SENTENCE.format(words(f"{number}/{i}", 24)) for i in range(PARAGRAPHS)]
    return "\n\n".join([f"# Document {number}", *paragraphs]).encode()


async def gaps(client: AsyncOpenAI) -> list[float]:
    """The gaps between the tokens of one answer, in milliseconds."""
    stream = await client.chat.completions.create(
        model="demo-chat",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=1,
        max_tokens=TOKENS,
        logit_bias={"2": -100},  # the end of a turn: all answers must have the same length
        stream=True,
    )
    at = [perf_counter() async for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
    return [(after - before) * 1e3 for before, after in pairwise(at)]


async def quiet(client: AsyncOpenAI, answers: int) -> Round:
    return Round([gap for _ in range(answers) for gap in await gaps(client)])


async def busy(client: AsyncOpenAI, number: int) -> Round:
    """Stream answers while a batch of files is ingested."""
    store = await client.vector_stores.create(name=f"round {number}")
    names = range(number * FILES, (number + 1) * FILES)
    sent = [await client.files.create(file=(f"{i}.md", document(i)), purpose="assistants") for i in names]
    began = perf_counter()
    batch = await client.vector_stores.file_batches.create(store.id, file_ids=[file.id for file in sent])
    found: list[float] = []
    while batch.status == "in_progress":
        found += await gaps(client)
        batch = await client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=store.id)
    return Round(found, FILES * PARAGRAPHS, perf_counter() - began)


async def measure(rounds: int) -> tuple[list[Round], list[Round]]:
    """Rounds without and with an ingest; each round with one lies between two without."""
    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-", ignore_cleanup_errors=True) as home:
        async with (
            serve(Path(home), "--docs", "") as worker,
            AsyncOpenAI(base_url=f"{worker.url}/v1", api_key=worker.api_key) as client,
        ):
            await quiet(client, 3)  # not counted
            without, beside = [await quiet(client, 8)], []
            for number in range(rounds):
                beside.append(await busy(client, number))
                without.append(await quiet(client, 8))
    return without, beside


def table(without: list[Round], beside: list[Round]) -> str:
    around = [statistics.mean([one.tpot_ms, other.tpot_ms]) for one, other in pairwise(without)]
    ratio = statistics.median(round.tpot_ms / usual for round, usual in zip(beside, around, strict=True))
    gaps = [percentile([gap for round in rounds for gap in round.gaps_ms], 95) for rounds in (without, beside)]
    rate = statistics.median(round.chunks / round.seconds for round in beside)
    lines = [
        "| | without | beside an ingest | ratio |",
        "|---|---|---|---|",
        f"| time per token, ms | {statistics.median(around):.2f} "
        f"| {statistics.median(round.tpot_ms for round in beside):.2f} | {ratio:.2f} |",
        f"| gap between tokens p95, ms | {gaps[0]:.2f} | {gaps[1]:.2f} | {gaps[1] / gaps[0]:.2f} |",
        f"| paragraphs a second | | {rate:.0f} | |",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="rounds with an ingest (default 8)")
    parser.add_argument("--json", type=Path, help="also write the times to this file")
    options = parser.parse_args()
    without, beside = asyncio.run(measure(options.rounds))
    print(table(without, beside))
    if options.json:
        told = {
            "without": [round.gaps_ms for round in without],
            "beside": [[round.gaps_ms, round.seconds] for round in beside],
        }
        options.json.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
