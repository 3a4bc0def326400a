"""What the cache gains with trained weights, whose predictions are not noise.

    python -m benchmarks.real_model FILE [--rounds 3] [--json FILE]

For example with the model that `firsttoken models pull smollm2-135m` downloads. The TTFT of a second turn, greedy: with
the cache recomputed, in its slot, in host memory (parked), and on disk after a restart; whether the tokens stay the
same, for normal and deterministic requests, and how close the two most likely tokens were where they differ. Prints a
Markdown table. For drafts, see benchmarks.engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from statistics import median

from inference.config import EngineConfig
from inference.engine.handle import Handle
from inference.generation import Sampling, Terms
from inference.model import ChatModel
from inference.prompt import ChatMessage
from worker.config import prepare_process

CONTEXT = 2048
PASSAGE = (
    "The lighthouse of Grey Point was built in 1874 by Eliza Marlow, an engineer from Bristol. Its lamp burned "
    "rapeseed oil until 1911, when the keeper, Thomas Reed, replaced it by an electric one that a windmill fed. In "
    "the storm of January 1953 the windmill was lost, and for eleven nights the keeper's daughter, Agnes, turned the "
    "lens by hand. Since 1988 nobody has lived there; the light is switched on and off from the harbour office in "
    "Penrose."
)
SYSTEM = "You are the guide of a small museum. This is what you know. " + PASSAGE * 6
FIRST_QUESTION = "Who are you, and what do you know?"
QUESTIONS = ("Who was Agnes?", "When was it built, and by whom?", "What did the lamp burn?", "Where is the office?")
SECOND_TOKENS = 24
ANEW, SLOT, MEMORY, DISK = "computed anew", "from its slot", "from memory", "from disk, after a restart"


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    ids: list[int]
    margins: list[float]  # per token: its log probability minus that of the runner-up, in nats
    ttft_ms: float
    cached_tokens: int
    prompt_tokens: int

    @classmethod
    async def of(cls, model: ChatModel, prompt: Sequence[int], sampling: Sampling, salt: str) -> Answer:
        generation = model.generate(prompt, sampling, Terms(salt=salt))
        deltas = [delta async for delta in generation]
        tops = [[number for _, number in each.top] for delta in deltas for each in delta.logprobs]
        return cls(
            "".join(delta.text for delta in deltas),
            generation.ids,
            [top[0] - top[1] for top in tops],
            ttft_ms(generation),
            generation.cached_tokens,
            generation.prompt_tokens,
        )


@asynccontextmanager
async def running(config: EngineConfig) -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, config)
    await model.start()
    try:
        yield model
    finally:
        await model.close()


def ttft_ms(generation: Handle) -> float:
    return (generation.stamps.first_token_ns - generation.stamps.submitted_ns) / 1e6


async def second_turns(config: EngineConfig, rounds: int) -> list[dict[str, object]]:
    """One row for each place where the conversation's cache may be."""
    plain, exact = [await _second_turns(config, rounds, deterministic=kind) for kind in (False, True)]
    return [
        {
            "the conversation comes": place,
            "cached tokens": f"{answers[0].cached_tokens} of {answers[0].prompt_tokens}",
            "TTFT, ms": median(answer.ttft_ms for answer in answers),
            "of computing anew": median(a.ttft_ms / b.ttft_ms for a, b in zip(answers, plain[ANEW], strict=True)),
            "same answers": told_same(answers, plain[ANEW]),
            "margin where they part, nats": told_margin(answers, plain[ANEW]),
            "same answers, deterministic": told_same(exact[place], exact[ANEW]),
        }
        for place, answers in plain.items()
    ]


async def _second_turns(config: EngineConfig, rounds: int, *, deterministic: bool) -> dict[str, list[Answer]]:
    """The answers of second turns, by where the first turn's cache is when the second one is requested. The cache holds
    the prompt, and an answer that was decoded token by token."""
    sampling = Sampling(temperature=0, max_tokens=SECOND_TOKENS, deterministic=deterministic, top_logprobs=2)
    found: dict[str, list[Answer]] = {ANEW: [], SLOT: [], MEMORY: [], DISK: []}

    async def begun(model: ChatModel, question: str, salt: str) -> list[int]:
        """Run the first turn. Returns the prompt of the second one."""
        messages = [ChatMessage("system", SYSTEM), ChatMessage("user", FIRST_QUESTION)]
        first = await Answer.of(model, model.encode(model.render(messages)), sampling, salt)
        messages += [ChatMessage("assistant", first.text), ChatMessage("user", question)]
        model.remember(messages[2], first.ids, salt=salt)
        return model.encode(model.render(messages, salt=salt))

    with tempfile.TemporaryDirectory(prefix="firsttoken-bench-") as folder:
        small = replace(config, parallel=1, resident=1, disk_folder=Path(folder), disk_bytes_max=2**30)
        for number in range(rounds):
            on_disk = []
            async with running(small) as model:
                for question in QUESTIONS:
                    salt = f"{number} {question}"
                    prompt = await begun(model, question, f"slot {salt}")
                    found[SLOT].append(await Answer.of(model, prompt, sampling, f"slot {salt}"))
                    found[ANEW].append(await Answer.of(model, prompt, sampling, f"anew {salt}"))
                    prompt = await begun(model, question, f"memory {salt}")
                    on_disk.append((await begun(model, question, f"disk {salt}"), f"disk {salt}"))
                    for other in range(3):
                        await Answer.of(model, prompt, sampling, f"other {other} {salt}")
                    found[MEMORY].append(await Answer.of(model, prompt, sampling, f"memory {salt}"))
            async with running(small) as model:
                for prompt, salt in on_disk:
                    found[DISK].append(await Answer.of(model, prompt, sampling, salt))
    return found


def told_same(answers: Sequence[Answer], others: Sequence[Answer]) -> str:
    return f"{sum(a.ids == b.ids for a, b in zip(answers, others, strict=True))} of {len(answers)}"


def told_margin(answers: Sequence[Answer], others: Sequence[Answer]) -> str:
    """The largest margin between the two most likely tokens where two answers diverge: rounding can only flip small
    margins.
    """
    parted: list[float] = []
    for a, b in zip(answers, others, strict=True):
        at = next((n for n, (one, two) in enumerate(zip_longest(a.ids, b.ids)) if one != two), len(b.ids))
        parted += b.margins[at : at + 1]
    return f"{max(parted):.3f}" if parted else ""


def table(rows: list[dict[str, object]]) -> str:
    head = list(rows[0])
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [f"| {' | '.join(_cell(row[name]) for name in head)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


async def measure(options: argparse.Namespace) -> None:
    plain = EngineConfig(model_path=options.model, parallel=1, resident=1, context=CONTEXT)
    turns = await second_turns(plain, options.rounds)
    print(table(turns))
    if options.json:
        options.json.write_text(json.dumps({"second turns": turns}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="FILE", help="a GGUF file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    prepare_process()
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
