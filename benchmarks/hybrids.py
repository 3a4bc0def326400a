"""What a prompt costs a model that mixes attention with recurrent layers, if most of it was computed before.

    python -m benchmarks.hybrids [--architecture qwen35] [--rounds 5] [--scale 6] [--json FILE]

Both sides are servers on the same libraries, with two streams, random weights and their defaults: llama-server keeps
up to 32 checkpoints per slot, and conversations in host memory. Each round has an agent of its own; the sides answer
one prompt after the other, in alternation. Prints a Markdown table: the prompt tokens that each side computed, the TTFT
of both, what llama.cpp alone takes to compute the tokens that we did, and the ratio of ours to theirs and to that floor
(medians of the rounds); then the bytes of a checkpoint and of a conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

from benchmarks.engine.prompts import Message, words
from benchmarks.engine.servers import Setup, firsttoken, llama_server
from benchmarks.engine.target import Endpoint, session
from inference.backend import Chunk
from inference.llama import LlamaContext, LlamaModel
from tests.inference.hybrids import ARCHITECTURES, write_hybrid
from worker.config import prepare_process

CONTEXT, STREAMS, ROWS = 4096, 2, 512
SYSTEM_WORDS, QUESTION_WORDS, ANSWER_TOKENS = 500, 50, 60


@dataclass(frozen=True, slots=True)
class Cost:
    prompt: int  # tokens
    computed: int
    ttft_ms: float


Said: TypeAlias = Message | dict[str, Any]
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "harbour"}'}}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}


async def ask(side: Endpoint, messages: Sequence[Said], word: int) -> tuple[Cost, str]:
    """Random weights would say anything, so they are made to repeat a word."""
    body = {
        "messages": [asdict(each) if isinstance(each, Message) else each for each in messages],
        "tools": [TOOL],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "logit_bias": {str(word): 100},
    }
    usage: dict[str, Any] = {}
    asked_s, first_s, said = perf_counter(), 0.0, ""
    async with side.http.post(f"{side.url}/v1/chat/completions", json=body, headers=side.headers) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if text := "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ())):
                first_s, said = first_s or perf_counter(), said + text
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    prompt: int = usage["prompt_tokens"]
    return Cost(prompt, prompt - cached, 1e3 * (first_s - asked_s)), said


async def round_of(side: Endpoint, seed: str, word: int) -> dict[str, Cost]:
    """The prompts of an agent, by what distinguishes each from those before."""
    system = Message("system", words(seed, SYSTEM_WORDS))
    question = [Message("user", words(f"{seed}/{number}", QUESTION_WORDS)) for number in range(8)]
    costs: dict[str, Cost] = {}

    async def asked(name: str, messages: Sequence[Said]) -> str:
        costs[name], said = await ask(side, messages, word)
        return said

    said = await asked("first conversation", [system, question[0]])
    talk: list[Said] = [system, question[0], Message("assistant", said), question[1]]
    said = await asked("next turn", talk)
    await asked("the same question again", talk)
    await asked("the question edited", [*talk[:-1], question[2]])
    await asked("second conversation", [system, question[3]])
    whole: list[Said] = [*talk, Message("assistant", said), question[4]]
    await asked("back to the first conversation", whole)
    await asked("branch from its first question", [system, question[0], talk[2], question[5]])
    called = [*whole, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    found = {"role": "tool", "tool_call_id": "call_1", "content": words(f"{seed}/found", QUESTION_WORDS)}
    await asked("back from a tool", [*called, found])
    stripped = Message("assistant", words(f"{seed}/answer", QUESTION_WORDS))  # as if its reasoning had been dropped
    await asked("an answer without its thoughts", [*whole, stripped, question[6]])
    return costs


def floor_of(device: LlamaContext, ours: Mapping[str, Cost]) -> dict[str, float]:
    """Milliseconds that llama.cpp alone takes to compute as many tokens behind as many others, in as few steps as it
    can."""
    floor = {}

    def compute(begin: int, end: int) -> float:
        started_s = perf_counter()
        for at in range(begin, end, ROWS):
            device.decode([Chunk(0, at, range(at, min(end, at + ROWS)))])
        return 1e3 * (perf_counter() - started_s)

    device.truncate(0, 0)
    for name, cost in sorted(ours.items(), key=lambda each: each[1].prompt - each[1].computed):
        known = cost.prompt - cost.computed
        compute(device.length(0), known)
        state = device.checkpoint(0) if known else None
        floor[name] = compute(known, cost.prompt)
        device.truncate(0, known, state)
    return floor


Measured: TypeAlias = tuple[dict[str, Cost], dict[str, Cost], dict[str, float]]


async def compare(path: Path, rounds: int, word: int) -> tuple[list[Measured], str]:
    setup = Setup(path, STREAMS, CONTEXT)
    measured: list[Measured] = []
    model = LlamaModel.load(path)
    device = LlamaContext(model, slots=STREAMS, context=CONTEXT, rows_max=ROWS, threads=setup.threads)
    async with (
        session() as http,
        firsttoken(setup, http) as ours,
        llama_server(setup, http, slots=STREAMS, flash=False) as theirs,
    ):
        for number in range(rounds + 1):  # the first one warms up
            sides = (ours, theirs) if number % 2 else (theirs, ours)
            costs = {side.name: await round_of(side, f"{number}", word) for side in sides}
            floor = await asyncio.to_thread(floor_of, device, costs[ours.name])
            measured.append((costs[ours.name], costs[theirs.name], floor))
        async with http.get(f"{ours.url}/metrics", headers=ours.headers) as answer:
            told = [line for line in (await answer.text()).splitlines() if line[0] != "#"]
            kept = [line for line in told if "checkpoint" in line or "engine_parked" in line]
    device.close()
    model.close()
    return measured[1:], "\n".join(kept)


def table(measured: Sequence[Measured]) -> str:
    rows = [
        "| prompt | computed: theirs, ours | TTFT, ms: theirs, ours, floor | ratio | to floor |",
        "|---|---|---|---|---|",
    ]
    for name in measured[0][0]:
        ours, theirs, floor = zip(*((a[name], b[name], c[name]) for a, b, c in measured), strict=True)
        ratio = median(a.ttft_ms / b.ttft_ms for a, b in zip(ours, theirs, strict=True))
        tokens = [round(median(each.computed for each in side)) for side in (theirs, ours)]
        times = [median(each.ttft_ms for each in side) for side in (theirs, ours)]
        least = [(a.ttft_ms, b) for a, b in zip(ours, floor, strict=True) if a.computed]
        over = f"{median(a / b for a, b in least):.2f}" if least else ""
        times = [*times, median(floor)]
        shown = ", ".join(f"{each:.0f}" for each in times)
        rows.append(f"| {name} | {tokens[0]}, {tokens[1]} | {shown} | {ratio:.2f} | {over} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--architecture", choices=list(ARCHITECTURES), default="qwen35")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=int, default=6, help="width and layers, as multiples of those of the tests")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    prepare_process()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{asked.architecture}.gguf")
        model = LlamaModel.load(write_hybrid(path, asked.architecture, context=CONTEXT, scale=asked.scale))
        word = model.tokenize("hello", parse_special=False)[0]
        model.close()
        measured, kept = asyncio.run(compare(path, asked.rounds, word))
    print(table(measured), kept, sep="\n\n")
    if asked.json:
        rounds = [
            [*({name: asdict(cost) for name, cost in side.items()} for side in sides), floor]
            for *sides, floor in measured
        ]
        asked.json.write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()
