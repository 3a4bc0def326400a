"""What the commands do, and what they print."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from inference.bundled import CHAT_MODEL, DRAFT_MODEL
from inference.errors import InferenceError
from training import evaluate as evaluation
from training import team
from training.accepted import Accepted
from training.batches import Source
from training.bundle import Kind, bundled_template
from training.cases import CATEGORIES
from training.checkpoint import Checkpoint
from training.conversations.generator import KINDS, Conversations, Generator
from training.job import Job
from training.parity import Differs, compared_with_llama
from training.prose import NoProse, Prose, installed, mined
from training.shape import CHAT, DRAFT
from training.suite import lines as cases_of
from training.tokenizer import learn
from training.trainer import Plan

# What a vocabulary is learnt from.
CONVERSATIONS, TURNS, DOCUMENTS = 2500, 3, 6000

# Tokens of a step, and processes that make batches: a GPU takes them as fast as all other cores make them.
CPU = {"tokens": 4096, "makers": 1}
GPU = {"tokens": 65536, "makers": max(1, (os.cpu_count() or 1) - 2)}


class NoDevice(Exception):
    """PyTorch finds no such device on this machine."""


FAILURES = (ValueError, OSError, Differs, InferenceError, NoProse, NoDevice)


def prose(target: Path) -> None:
    found = mined(installed())
    target.parent.mkdir(parents=True, exist_ok=True)
    found.write(target)
    print(f"{target}: {found.sentences} sentences of {len(found.documents)} documents, {len(found.words)} words")


def tokenizer(target: Path, prose: Path, size: int) -> None:
    texts = list(_corpus(Prose.read(prose)))
    learnt = learn(texts, size).tokenizer()
    target.parent.mkdir(parents=True, exist_ok=True)
    learnt.save(str(target))
    tokens = sum(len(encoding.ids) for encoding in learnt.encode_batch(texts))
    print(f"{target}: {learnt.get_vocab_size()} tokens, {sum(map(len, texts)) / tokens:.2f} characters to a token")


def train(
    target: Path,
    prose: Path,
    *,
    start: Path | None,
    fresh: bool,
    resumes: bool,
    tokenizer: Path | None = None,
    teacher: Path | None = None,
    draft: bool = False,
    accepted: Path | None = None,
    accepted_share: float = 0.2,
    processes: int | None,
    **plan: Any,
) -> None:
    """Both kinds of training; `plan` has the fields of a Plan, None where they depend on the device."""
    if plan["device"] == "cuda" and not torch.cuda.is_available():
        raise NoDevice("PyTorch finds no GPU that it can use on this machine")
    gpu = plan["device"] == "cuda"
    if gpu and processes not in (None, 1):
        raise ValueError("one process trains on a GPU: leave --processes out")
    plan |= {name: default for name, default in (GPU if gpu else CPU).items() if plan[name] is None}
    if not (fresh or resumes):
        start = start or (DRAFT_MODEL if draft else CHAT_MODEL)
    target.parent.mkdir(parents=True, exist_ok=True)
    shape = DRAFT if draft else CHAT
    source: Source = Conversations(prose)
    if accepted is not None:
        source = Accepted(accepted, accepted_share, source)
    job = Job(Plan(**plan), source, target, shape, start, resumes, tokenizer, teacher)
    job.check()
    team.run(processes or (1 if gpu else 2), job)


def evaluate(
    model: Path,
    prose: Path,
    draft: Path | None,
    count: int,
    seed: str,
    shown: int,
    free_only: bool,
    **settings: Any,
) -> None:
    """Prints the table, and some of what went wrong in each category. `settings` are fields of EngineConfig."""

    def held_out() -> Generator:
        return Generator(seed, "test", Prose.read(prose))

    free = asyncio.run(evaluation.evaluate(model, held_out(), count, **settings))
    held = None if free_only else asyncio.run(evaluation.evaluate(model, held_out(), count, held=True, **settings))
    print("\n".join(evaluation.table(free, held)))
    if draft:
        accepted = asyncio.run(evaluation.acceptance(model, draft, held_out(), max(1, count // len(CATEGORIES))))
        print(f"\nDrafted tokens accepted, {evaluation.DRAFTED} at a time: {100 * accepted:.1f} %")
    for how, scores in (("Freely", free), ("Under the grammar", held)):
        for wrong in evaluation.examples(scores, shown) if scores else ():
            print(f"\n{how}: {wrong}")


def suite(target: Path, prose: Path, count: int, seed: str) -> None:
    """Writes the cases that `evaluate` asks, for `firsttoken eval suite`."""
    written = list(cases_of(Generator(seed, "test", Prose.read(prose)), count))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(f"{line}\n" for line in written), "utf-8")
    print(f"{target}: {len(written) - 1} cases")


def average(first: Path, second: Path, target: Path, share: float) -> None:
    Checkpoint.load(first).averaged(Checkpoint.load(second), share).save(target)
    print(f"{target}: {share:g} of {first} and {1 - share:g} of {second}")


def export(checkpoint: Path, target: Path, title: str, kind: Kind, check: bool) -> None:
    trained, template = Checkpoint.load(checkpoint), bundled_template()
    print(f"{trained.parameters / 1e6:.2f} M parameters, step {trained.step}, {trained.seen / 1e6:.2f} M tokens")
    if check:
        print(f"against llama.cpp: {compared_with_llama(trained, template)}")
    trained.bundle(title, template).write(target, kind)
    print(f"{target}: {target.stat().st_size / 1e6:.2f} MB")


def _corpus(prose: Prose) -> Iterator[str]:
    generator = Generator("vocabulary", "train", prose)
    for i in tqdm(range(CONVERSATIONS), desc="conversations", disable=None):
        scene = generator.conversation(KINDS[i % len(KINDS)], TURNS)
        yield "".join(piece.text for piece in scene.pieces())
    for title, sentences in prose.documents[:DOCUMENTS]:
        yield title + "\n" + " ".join(sentences)
