"""What prefill during retrieval saves: TTFT with the prefix prefilled while retrieval runs, and one after the other.

    python -m benchmarks.overlap [--rounds 11] [--model FILE] [--json FILE]

The whole turn runs in this process: the bundled embedder, an embedded Postgres with the sample documents, and the
bundled chat model or another one. Every turn has a new prefix and a new question. Both ways alternate, so that a busy
machine slows both; the ratio is taken pair by pair. `far` adds the latency of a database in another building.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from uuid import UUID

from agents.agent import Agent
from agents.budget import FREE
from agents.message import Message
from agents.model_registry import Candidate
from agents.prefetch import Prefetch
from agents.search import Rewriting
from agents.toolbox import Toolbox
from agents.turn import FileSearch, Turn
from agents.turn_opener import TurnOpener
from benchmarks.engine.synthetic import WORDS
from benchmarks.pairs import pairs, unread
from benchmarks.sinks import FirstText
from inference.generation import Sampling
from inference.language_model import LanguageModel
from inference.trace import Trace, now_ns
from retrieval.ingest import ingest
from retrieval.passage import Passage
from retrieval.query import Query, Searcher
from retrieval.retriever import Retriever
from worker.auth.keys import LOCAL_TENANT
from worker.config import Config, prepare_process
from worker.home import Home
from worker.start import open_services

STORE = "docs"
PREFIXES = (200, 800, 1600, 3200)  # tokens; lengths that do not fit the model's context are skipped
REST_TOKENS = 400  # of passages, question and answer, after the prefix
FAR_S = 0.05


class SerialOpener(TurnOpener):
    """Does not prefill the prompt ahead."""

    async def _search(
        self, turn: Turn, likely: Candidate, trace: Trace, ahead: Prefetch
    ) -> tuple[Rewriting, list[Passage]]:
        return await self._find(turn, trace)


class SerialAgent(Agent):
    def __init__(self, model: LanguageModel, retriever: Searcher, toolbox: Toolbox) -> None:
        super().__init__(model, retriever, toolbox)
        self._opener = SerialOpener(self._prompts, self._router, retriever, FREE)


@dataclass(frozen=True, slots=True)
class Far:
    """A retriever whose results arrive later, without using the CPU meanwhile."""

    retriever: Retriever

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        await asyncio.sleep(FAR_S)
        return await self.retriever.retrieve(query, trace, budget_ms)


@dataclass(frozen=True, slots=True)
class Row:
    database: str
    prefix_tokens: int
    retrieve_ms: float  # beside the prefill
    serial_ms: float
    overlap_ms: float
    ratio: float  # median of overlap divided by serial, pair by pair


@dataclass(slots=True)
class Bench:
    model: LanguageModel
    tenant_id: UUID
    random: random.Random

    async def row(self, database: str, agents: tuple[Agent, Agent], tokens: int, rounds: int) -> Row:
        measured = await pairs(agents, lambda agent: self.first_token_ms(agent, tokens), rounds)
        middle = statistics.median
        return Row(
            database,
            tokens,
            retrieve_ms=middle(retrieve for _, (_, retrieve) in measured),
            serial_ms=middle(serial for (serial, _), _ in measured),
            overlap_ms=middle(overlap for _, (overlap, _) in measured),
            ratio=middle(overlap / serial for (serial, _), (overlap, _) in measured),
        )

    async def first_token_ms(self, agent: Agent, tokens: int) -> tuple[float, float]:
        """Milliseconds from the start of the turn to its first text, and of these, the retrieval's."""
        question = f"What is the default port of worker {' '.join(self.random.choices(WORDS, k=3))}?"
        turn = Turn(
            self.tenant_id,
            (Message("user", question),),
            instructions=unread(self.model, self.random, tokens),
            file_search=FileSearch((STORE,), max_num_results=3),
            sampling=Sampling(max_tokens=2, temperature=0),
        )
        trace, began = Trace(), now_ns()
        told = FirstText()
        await agent.run(turn, trace, told)
        ms = (told.text_ns - began) / 1e6
        return ms, next(span.duration_ms for span in trace.spans if span.name == "retrieve")


async def measure(config: Config, rounds: int) -> list[Row]:
    home = Home(config.home)
    home.prepare()
    async with open_services(config, home) as (services, *_):
        tenant_id = await services.authenticator.keys.tenant(LOCAL_TENANT)
        assert config.docs is not None
        await ingest(
            [config.docs], store_name=STORE, tenant_id=tenant_id, store=services.passages, embedders=services.embedders
        )
        bench, model, toolbox = Bench(services.model, tenant_id, random.Random(7)), services.model, Toolbox(())
        rows = []
        for database, searcher in (("near", services.retriever), ("far", Far(services.retriever))):
            agents = SerialAgent(model, searcher, toolbox), Agent(model, searcher, toolbox)
            for tokens in PREFIXES:
                if tokens + REST_TOKENS <= model.context_length:
                    rows.append(await bench.row(database, agents, tokens, rounds))
                    show(rows[-1])
        return rows


def show(row: Row) -> None:
    times = f"{row.retrieve_ms:12.1f}{row.serial_ms:12.1f}{row.overlap_ms:12.1f}{row.ratio:10.2f}"
    print(f"{row.database:10}{row.prefix_tokens:8}{times}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11, help="pairs per row (default 11)")
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the bundled model")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    prepare_process()
    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # if this runs as root, Postgres runs as another user
        config = Config(home=Path(folder))
        if options.model:
            config = Config(home=Path(folder), model=options.model)
        print(f"{'database':10}{'prefix':>8}{'retrieve ms':>12}{'serial ms':>12}{'overlap ms':>12}{'ratio':>10}")
        rows = asyncio.run(measure(config, options.rounds))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
