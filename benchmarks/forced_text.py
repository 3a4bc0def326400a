"""What is saved by not taking a step for each token that the grammar forces.

    python -m benchmarks.forced_text [--model FILE] [--rounds 5] [--json FILE]

Structured answers and forced tool calls, greedy, one stream: model steps and milliseconds per answer. With and without
alternate in one run; without, the sampler reports that no token is forced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from inference.bundled import CHAT_MODEL
from inference.config import EngineConfig
from inference.engine.sampler import Sampler
from inference.generation import Sampling
from inference.grammar.schema import json_grammar
from inference.grammar.tools import CallableFunction, tool_grammar
from inference.model import ChatModel
from inference.prompt import ChatMessage

PERSON = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 20},
        "date_of_birth": {"type": "string", "format": "date"},
        "is_customer": {"type": "boolean"},
        "kind_of_record": {"enum": ["customer record", "customer order", "supplier record"]},
        "quantity": {"type": "integer", "minimum": 0, "maximum": 99},
    },
}
SCHEMA = {**PERSON, "required": [*PERSON["properties"]]}
GRAMMARS = {
    "object of five properties": json_grammar(SCHEMA),
    "list of three objects": json_grammar({"type": "array", "items": SCHEMA, "minItems": 3, "maxItems": 3}),
    "forced call": tool_grammar([CallableFunction("save_person", SCHEMA, strict=True)], required=True, calls_max=1),
}
QUESTION = f"Answer with JSON only, of this schema: {json.dumps(SCHEMA)}\n\nTell me about Ada."


@dataclass(frozen=True, slots=True)
class Measured:
    tokens: int
    steps: int
    ms: float


@contextmanager
def nothing_is_forced() -> Iterator[None]:
    forced = Sampler.forced
    Sampler.forced = lambda self: []  # type: ignore[method-assign] # the side to compare with
    try:
        yield
    finally:
        Sampler.forced = forced  # type: ignore[method-assign]


async def answer(model: ChatModel, grammar: str) -> Measured:
    prompt = model.encode(model.render([ChatMessage("user", QUESTION)]))
    sampling = Sampling(temperature=0, max_tokens=400, grammar=model.prepare(grammar))
    before, started = int(model.stats()["steps_total"]), perf_counter()
    generation = model.generate(prompt, sampling)
    async for _ in generation:
        pass
    ms = (perf_counter() - started) * 1000
    return Measured(len(generation.ids), int(model.stats()["steps_total"]) - before, ms)


async def compare(model: ChatModel, grammar: str, rounds: int) -> tuple[list[Measured], list[Measured]]:
    """Measurements without and with forced tokens, after one warm-up answer of each."""
    without, with_them = [], []
    for _ in range(1 + rounds):
        with nothing_is_forced():
            without.append(await answer(model, grammar))
        with_them.append(await answer(model, grammar))
    return without[1:], with_them[1:]


async def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", type=Path, default=CHAT_MODEL)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(model_path=options.model, parallel=1, resident=1))
    await model.start()
    told = {}
    print("| answer | tokens | steps before | steps now | time, now / before |\n|---|---|---|---|---|")
    for name, grammar in GRAMMARS.items():
        before, now = await compare(model, grammar, options.rounds)
        ratio = statistics.median(b.ms / a.ms for a, b in zip(before, now, strict=True))
        steps = [round(statistics.mean(each.steps for each in side)) for side in (before, now)]
        print(f"| {name} | {before[0].tokens} | {steps[0]} | {steps[1]} | {ratio:.2f} |")
        told[name] = {"before": [asdict(each) for each in before], "now": [asdict(each) for each in now]}
    await model.close()
    if options.json:
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
