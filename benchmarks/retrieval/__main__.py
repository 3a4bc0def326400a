"""The quality and speed of retrieval, by stage and in total.

    python -m benchmarks.retrieval [--pods FOLDER] [--home FOLDER] [--json FILE]

Ingests documents found on this machine as a user would, asks questions with known answers, and prints a table per
collection. Every question runs once through all stages, so other load on the machine affects all rankings of a table
alike. With --home the ingested documents are kept, and a second run starts at once.

With --chunks 100000 the FAQ is then asked again in a store of that many chunks, next to smaller tenants, and each
search is compared with the exact search, with and without filters. Filling that store takes some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any
from uuid import UUID

from tqdm import tqdm

from benchmarks.retrieval.bench import TENANT, Bench, opened, sides
from benchmarks.retrieval.corpora import PODS, Corpus, corpora
from benchmarks.retrieval.large import LARGE, build, table
from retrieval.config import SCORE_THRESHOLD
from retrieval.quality.evaluate import Evaluation, as_dict, evaluate, quality_table, stage_table
from retrieval.quality.measures import judge
from retrieval.quality.questions import Question
from retrieval.records import CountedStore, SourceSpan
from retrieval.retriever import Retriever
from worker.cli.evals.outcome import difference
from worker.config import prepare_process

PASSAGES = 5  # the default of a turn


async def measure(bench: Bench, corpus: Corpus) -> Evaluation:
    tenant_id = await bench.tenant(TENANT)
    corpus.write(bench.folder / corpus.name)
    report = await bench.ingest(bench.folder / corpus.name, tenant_id, corpus.name)
    return await ask(bench, corpus, tenant_id, report.store)


async def ask(bench: Bench, corpus: Corpus, tenant_id: UUID, store: CountedStore) -> Evaluation:
    """Ask the questions of the corpus in a store that holds its documents, and print the results."""
    questions = await bench.questions(corpus.lines, tenant_id, store.id)
    print(f"\n## {corpus.name} in {store.name}\n")
    print(f"{len(questions)} questions, {store.chunks} chunks of {store.files} files\n")
    with tqdm(desc=f"{corpus.name}: ask", total=len(questions), disable=None, leave=False) as bar:
        evaluation = await evaluate(
            questions,
            Retriever(bench.store, bench.embedders),
            tenant_id=tenant_id,
            store=store.id,
            limit=PASSAGES,
            score_threshold=0.0,
            progress=bar.update,
        )
    show(evaluation, questions)
    print(f"\n{await sides(bench, questions, tenant_id, store.id)}")
    return evaluation


def show(evaluation: Evaluation, questions: Sequence[Question]) -> None:
    print(quality_table(evaluation))
    print(f"\n{stage_table(evaluation)}\n")
    ranks = {name: [each.reciprocal_rank for each in found] for name, found in evaluation.judgements.items()}
    for single in ("vectors alone", "words alone"):
        gain = difference(ranks["reranked"], ranks[single])
        print(f"- MRR@10 of reranked over {single}: {gain.low:+.3f} to {gain.high:+.3f} (95 %)")
    print(f"- given to the model: {evaluation.tokens:.0f} tokens per question")
    kept, tokens = above_threshold(evaluation, questions)
    print(f"- with the threshold {SCORE_THRESHOLD} of the search tool: recall {kept:.3f} with {tokens:.0f} tokens")
    print(f"- stages over their budget: {evaluation.skipped}")


def above_threshold(evaluation: Evaluation, questions: Sequence[Question]) -> tuple[float, float]:
    """The share of the targets that are still found above the score threshold, and the mean tokens per question of the
    remaining passages."""
    found = [[passage for passage in passages if passage.score >= SCORE_THRESHOLD] for passages in evaluation.passages]
    recalls = [
        judge([SourceSpan(p.file_id, p.start_char, p.end_char) for p in passages], question.targets).recall(PASSAGES)
        for passages, question in zip(found, questions, strict=True)
    ]
    return mean(recalls), mean(sum(p.tokens for p in passages) for passages in found)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with opened(options.home) as bench:
        measured = [*corpora(options.pods)]
        for corpus in measured:
            found[corpus.name] = as_dict(await measure(bench, corpus))
        if options.chunks:
            asked, *others = measured
            store = await build(bench, asked, options.chunks, [corpus.name for corpus in others])
            found[LARGE] = as_dict(await ask(bench, asked, await bench.tenant(LARGE), store))
            print(f"\n{await table(bench, asked)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=Path, default=PODS, help=f"folder of Perl's documentation (default {PODS})")
    parser.add_argument("--chunks", type=int, default=0, help="also ask in a store of this many chunks (default: no)")
    parser.add_argument("--home", type=Path, help="keep the database in this folder (default: delete it)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    prepare_process()
    found = asyncio.run(run(options))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
