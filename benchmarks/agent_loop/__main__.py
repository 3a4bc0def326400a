"""A task with tool calls, run by the worker's agent loop and by client-side loops around the model.

    python -m benchmarks.agent_loop [--rounds 20] [--json FILE]

Three steps of two calls each, 50 ms per call, then an answer. The model recites it (see `actor`), so every side
generates the same tokens. The sides: the worker's own loop, with its tool over MCP; a program with the `openai` client
against llama-server with the same model file, which runs the calls either one after another, as in the client's
documentation, or concurrently; and the same program against the worker's chat completions. They alternate within every
round; numbers are medians over the rounds, ratios are taken within a round. Prints a Markdown table. Needs the
development dependencies; the first call compiles llama-server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from openai import AsyncOpenAI

from benchmarks.agent_loop.actor import SHAPE, actor
from benchmarks.agent_loop.loops import Loop, Programmed, Ran, Served, one_after_another, together
from benchmarks.agent_loop.task import SERVER
from benchmarks.engine.measures import medians, ratios
from benchmarks.engine.peer import cache_folder, llama_server
from benchmarks.engine.servers import Setup
from benchmarks.engine.servers import llama_server as llama_server_process
from benchmarks.engine.target import session
from benchmarks.served import serve
from worker.config import prepare_process

CONTEXT = 4096
WARM_UP = 2  # rounds that are not counted


@asynccontextmanager
async def sides() -> AsyncIterator[list[Loop]]:
    """The sides: the worker's loop first, then the client-side loops against llama-server and against the worker."""
    model = actor(cache_folder() / "models")
    setup = Setup(model, 1, CONTEXT)
    program = await asyncio.to_thread(llama_server, cache_folder())
    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        agents = home / "agents.toml"
        command = [sys.executable, "-m", "benchmarks.agent_loop.tool_server"]
        agents.write_text(f"[mcp.{SERVER}]\ncommand = {json.dumps(command)}\nfolder = {json.dumps(str(Path.cwd()))}\n")
        flags = ["--model", str(model), "--streams", "1", "--context", str(CONTEXT), "--docs", ""]
        async with (
            serve(home, *flags, "--threads", str(setup.threads), "--agents", str(agents)) as worker,
            session() as http,
            llama_server_process(program, setup, http, slots=1, flash=True) as theirs,
            AsyncOpenAI(base_url=f"{worker.url}/v1", api_key=worker.api_key) as ours,
            AsyncOpenAI(base_url=f"{theirs.url}/v1", api_key="none") as other,
        ):
            yield [
                Served("the worker's loop", ours, SHAPE.name),
                Programmed("llama-server, one call after another", other, SHAPE.name, one_after_another),
                Programmed("llama-server, calls together", other, SHAPE.name, together),
                Programmed("the worker's completions, calls together", ours, SHAPE.name, together),
            ]


async def measure(rounds: int) -> dict[str, list[Ran]]:
    async with sides() as loops:
        ran: dict[str, list[Ran]] = {loop.name: [] for loop in loops}
        for number in range(WARM_UP + rounds):
            for place, loop in enumerate(loops):
                numbers = await loop.run(number * len(loops) + place)  # a customer that has not occurred before
                if number >= WARM_UP:
                    ran[loop.name].append(numbers)
        return ran


def table(ran: dict[str, list[Ran]]) -> str:
    """The rows of a Markdown table, one per measure. Next to each client-side number is the ratio of ours to it."""
    (ours, mine), *others = ran.items()
    lines = ["| | " + " | ".join([ours, *(name for name, _ in others)]) + " |", "|---" * (len(ran) + 1) + "|"]
    for name, value in medians(mine).items():
        cells = [f"{medians(theirs)[name]:.1f} ({_ratio(mine, theirs, name)})" for _, theirs in others]
        lines.append(f"| {name} | {value:.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratio(mine: Sequence[Ran], theirs: Sequence[Ran], name: str) -> str:
    keep = [{name: ran[name]} for ran in theirs]
    return f"{ratios([{name: ran[name]} for ran in mine], keep)[name]:.2f}" if all(each[name] for each in keep) else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds (default 20)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    prepare_process()
    ran = asyncio.run(measure(options.rounds))
    print(table(ran))
    if options.json:
        options.json.write_text(json.dumps(ran, indent=2))


if __name__ == "__main__":
    main()
