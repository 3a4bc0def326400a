"""What prefill of tool results during other tool calls saves: time from the last result of a step to the first word of
the answer, with the earlier results prefilled while the last tool still runs, or together with its result.

    python -m benchmarks.results [--rounds 11] [--json FILE]

The agent, the bundled model and two tools in this process. One tool returns a text at once, the other one a word after
SLOW_S. Both ways alternate, so that a busy machine slows both; the ratio is taken pair by pair.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import UUID

from agents.agent import Agent
from agents.message import FunctionCall, Message
from agents.progress import Progress
from agents.tool import Tool, tool
from agents.toolbox import Toolbox
from agents.turn import Turn
from benchmarks.pairs import pairs, unread
from benchmarks.sinks import FirstText
from inference.bundled import CHAT_MODEL
from inference.config import EngineConfig
from inference.generation import Sampling
from inference.model import ChatModel
from inference.trace import Trace, now_ns
from worker.config import prepare_process

RESULTS = (100, 300, 600, 1000)  # tokens; more do not fit the model's context
SLOW_S = 0.5
QUESTION = "Get the page for Oslo and check the price of Rome."


class SerialAgent(Agent):
    """An agent that prefills results only when all of them are available."""

    async def _read_results(self, progress: Progress, missing: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Row:
    result_tokens: int
    serial_ms: float
    ahead_ms: float
    ratio: float  # median of ahead divided by serial, pair by pair


@dataclass(slots=True)
class Bench:
    """`text`: the next result of the fast tool. `last_ns`: when the slow tool returned."""

    model: ChatModel
    random: random.Random = field(default_factory=lambda: random.Random(7))
    text: str = ""
    last_ns: int = 0

    def tools(self) -> list[Tool]:
        @tool
        async def get_page(page: str) -> str:
            """Get the page."""
            return self.text

        @tool
        async def check_price(item: str) -> str:
            """Check the price of an item."""
            await asyncio.sleep(SLOW_S)
            self.last_ns = now_ns()
            return "12"

        return [get_page, check_price]

    async def row(self, agents: tuple[Agent, Agent], tokens: int, rounds: int) -> Row:
        measured = await pairs(agents, lambda agent: self.first_word_ms(agent, tokens), rounds)
        middle = statistics.median
        return Row(
            tokens,
            serial_ms=middle(serial for serial, _ in measured),
            ahead_ms=middle(ahead for _, ahead in measured),
            ratio=middle(ahead / serial for serial, ahead in measured),
        )

    async def first_word_ms(self, agent: Agent, tokens: int) -> float:
        """Milliseconds from the last result to the first text after it."""
        self.text = unread(self.model, self.random, tokens)
        turn = Turn(
            UUID(int=1),
            (Message("user", QUESTION),),
            server_tools=("get_page", "check_price"),
            sampling=Sampling(max_tokens=120, temperature=0),
        )
        told = FirstText()
        await agent.run(turn, Trace(), told)
        called = [event for event in told.events if isinstance(getattr(event, "item", None), FunctionCall)]
        if not self.last_ns or len(called) < 2 or told.text_ns < self.last_ns:
            raise RuntimeError("the model did not call both tools")
        return (told.text_ns - self.last_ns) / 1e6


async def measure(rounds: int) -> list[Row]:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(model_path=CHAT_MODEL))
    await model.start()
    try:
        bench = Bench(model)
        toolbox = Toolbox(bench.tools())
        agents = SerialAgent(model, None, toolbox), Agent(model, None, toolbox)
        rows = []
        for tokens in RESULTS:
            rows.append(await bench.row(agents, tokens, rounds))
            row = rows[-1]
            print(f"{row.result_tokens:14}{row.serial_ms:12.1f}{row.ahead_ms:12.1f}{row.ratio:10.2f}", flush=True)
        return rows
    finally:
        await model.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11, help="pairs per row (default 11)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    prepare_process()
    print(f"{'result tokens':>14}{'serial ms':>12}{'ahead ms':>12}{'ratio':>10}")
    rows = asyncio.run(measure(options.rounds))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
