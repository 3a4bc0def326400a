"""What routing between two models gains: quality and engine seconds of a suite with the small model, the large one and
cascades of both; the router's own time; the memory of two models compared with one.

    python -m benchmarks.routing SUITE [--small demo-chat] [--large smol-chat] [--cases 20] [--json FILE]

The cases run through the agent, one at a time, with their own tools and no documents. A case is correct if its score is
1. An engine second of both models costs the same. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import groupby, islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter
from tqdm import tqdm

from agents.agent import Agent
from agents.events import EventList
from agents.function_tool import FunctionTool
from agents.message import FunctionCall, FunctionCallOutput, Item, Message
from agents.model_registry import Candidate, ModelRegistry
from agents.router import Router
from agents.routing.policy import Policy
from agents.toolbox import Toolbox
from agents.turn import Turn
from inference.config import EngineConfig
from inference.generation import Sampling
from inference.model import ChatModel
from inference.provisioning.catalogue import find
from inference.trace import Trace
from worker.cli.evals.graders import grade, score
from worker.cli.evals.suite import Answer, Called, Case, read_suites
from worker.config import load, prepare_process
from worker.home import Home

SAMPLING = Sampling(max_tokens=220, temperature=0)
TENANT = UUID(int=1)
LOOKS = 500
STATUS = Path("/proc/self/status")


def cascade(mean: float, least: float, margin: float = 0.0) -> Policy:
    doubt = {"mean_logprob": mean, "min_logprob": least, "margin": margin, "refusals": []}
    table = {"policy": "cascade", "first": "small", "then": "large", "doubt": doubt}
    return TypeAdapter[Policy](Policy).validate_python(table)


def policies() -> dict[str, Policy]:
    fixed = TypeAdapter[Policy](Policy).validate_python
    return {
        "small": fixed({"policy": "fixed", "model": ["small"]}),
        "large": fixed({"policy": "fixed", "model": ["large"]}),
        "cascade, min -1": cascade(-0.5, -1.0),
        "cascade, min -0.1": cascade(-0.1, -0.1),
        "cascade, min -0.001": cascade(-0.1, -0.001),
    }


@dataclass(frozen=True, slots=True)
class Row:
    way: str
    right: float  # share of the cases
    engine_s: float
    taken_over: float  # share of the steps
    read_ms: float  # median


def items_of(messages: Sequence[Mapping[str, Any]]) -> tuple[Item, ...]:
    items: list[Item] = []
    for message in messages:
        if message["role"] == "tool":
            items.append(FunctionCallOutput(message["tool_call_id"], message["content"]))
            continue
        calls = message.get("tool_calls", ())
        if message["content"] or not calls:
            items.append(Message(message["role"], message["content"]))
        items += [FunctionCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls]
    return tuple(items)


def turn_of(case: Case, tenant: UUID) -> Turn:
    tools = tuple(FunctionTool(tool.name, tool.description, tool.parameters) for tool in case.tools or ())
    return Turn(tenant, items_of(case.said), functions=tools, sampling=SAMPLING)


@dataclass(slots=True)
class Way:
    """One side of the comparison. It runs as a tenant of its own, so that it shares no prompt cache with the others."""

    name: str
    agent: Agent
    tenant: UUID
    cases: int = 0
    right: int = 0
    engine_s: float = 0.0
    steps: int = 0
    taken_over: int = 0
    read_ms: list[float] = field(default_factory=list)  # from the request to the end of its prefill

    async def ask(self, case: Case) -> None:
        trace = Trace()
        finished = await self.agent.run(turn_of(case, self.tenant), trace, EventList())
        self._add(trace)
        said = "".join(item.text for item in finished.output if isinstance(item, Message))
        calls = tuple(Called(i.name, i.arguments) for i in finished.output if isinstance(i, FunctionCall))
        self.cases += 1
        self.right += score(grade(case, Answer(said, calls))) == 1

    def _add(self, trace: Trace) -> None:
        for span in trace.spans:
            if span.name in ("prefill", "decode"):
                self.engine_s += span.duration_ms / 1e3
            self.taken_over += span.attributes.get("took_over") is True
        self.steps += 1
        read = max(span.end_ns for span in trace.spans if span.name == "prefill")
        self.read_ms.append((read - trace.start_ns) / 1e6)

    @property
    def row(self) -> Row:
        right, taken_over = self.right / self.cases, self.taken_over / self.steps
        return Row(self.name, right, self.engine_s, taken_over, median(self.read_ms))


async def quality(models: dict[str, Candidate], suite: Path, count: int) -> list[Row]:
    """Run the cases. All ways alternate case by case, so that other load on the machine slows all of them."""
    asking = [
        Way(name, Agent(ModelRegistry(models, {"way": policy}, "way"), None, Toolbox()), UUID(int=at))
        for at, (name, policy) in enumerate(policies().items(), 1)
    ]
    cases = groupby(read_suites([suite]).cases, lambda case: case.group)
    for case in tqdm([case for _, group in cases for case in islice(group, count)], unit=" cases", disable=None):
        for way in asking:
            await way.ask(case)
    return [way.row for way in asking]


def own_time_us(models: dict[str, Candidate]) -> float:
    """Median microseconds of the router for a turn after a conversation of sixty messages."""
    router = Router(ModelRegistry(models, {"way": cascade(-0.8, -3.0)}, "way"))
    said = [Message("user" if at % 2 == 0 else "assistant", "What was that? " * 20) for at in range(60)]
    turn = Turn(TENANT, (Message("user", "And what is it now?"),), history=tuple(said))
    took = []
    for _ in range(LOOKS):
        began = perf_counter()
        router.decide(turn, trace=Trace())
        took.append(perf_counter() - began)
    return 1e6 * median(took)


def resident_mb() -> dict[str, int]:
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return {name: int(lines[key].split()[0]) // 1024 for name, key in (("anonymous", "RssAnon"), ("file", "RssFile"))}


@asynccontextmanager
async def loaded(path: Path, name: str) -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(model_path=path))
    model.name = name
    await model.start()
    try:
        yield model
    finally:
        await model.close()


async def measure(suite: Path, paths: tuple[Path, Path], count: int) -> dict[str, Any]:
    none = resident_mb()
    async with loaded(paths[1], "large") as large:
        one = resident_mb()
        async with loaded(paths[0], "small") as small:
            both = resident_mb()
            models = {"small": Candidate(small), "large": Candidate(large)}
            return {
                "memory_mb": {"no model": none, "large": one, "large and small": both},
                "router_us": own_time_us(models),
                "rows": [asdict(row) for row in await quality(models, suite, count)],
            }


def tables(found: dict[str, Any]) -> str:
    lines = [
        "| | correct | engine, s | relative to large | escalated steps | prefilled after, ms |",
        "|---|---|---|---|---|---|",
    ]
    of_large = next(row["engine_s"] for row in found["rows"] if row["way"] == "large")
    for row in found["rows"]:
        lines.append(
            f"| {row['way']} | {100 * row['right']:.1f} % | {row['engine_s']:.1f} "
            f"| {100 * row['engine_s'] / of_large:.0f} % | {100 * row['taken_over']:.0f} % | {row['read_ms']:.1f} |"
        )
    lines += [
        "",
        f"The router's own time: {found['router_us']:.0f} µs.",
        "",
        "| MB | anonymous | files |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {size['anonymous']} | {size['file']} |" for name, size in found["memory_mb"].items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, help="cases, as for `firsttoken eval suite`")
    parser.add_argument(
        "--small", type=Path, default=Path("demo-chat"), help="a GGUF file or a name (default demo-chat)"
    )
    parser.add_argument("--large", type=Path, default=Path("smol-chat"), help="likewise (default smol-chat)")
    parser.add_argument("--cases", type=int, default=20, help="cases of each group (default 20)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    prepare_process()
    folder = Home(load({}).home).models
    paths = find(options.small, folder), find(options.large, folder)
    found = asyncio.run(measure(options.suite, paths, options.cases))
    print(tables(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
