"""`firsttoken eval retrieval`: the recall and the speed of each stage of a search by judged questions."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import orjson
from tqdm import tqdm

from retrieval.config import PASSAGES_MAX
from retrieval.embedding import check_model
from retrieval.quality.evaluate import Evaluation, as_dict, evaluate, quality_table, stage_table
from retrieval.quality.questions import Resolved, UnusableQuestions, read_questions, resolve
from retrieval.retriever import Retriever
from retrieval.store import PassageStore
from worker.cli.tenant import open_tenant
from worker.config import Config
from worker.engines.engine_config import open_embedders, open_reranker
from worker.errors import StartError

MISSED_SHOWN_MAX = 10


async def evaluate_retrieval(
    config: Config, *, store: str, questions: str, tenant: str, limit: int, score_threshold: float, as_json: bool
) -> None:
    """Prints the results, then fails if a question names something that the store does not hold."""
    if not 1 <= limit <= PASSAGES_MAX:
        raise StartError(f"--limit must be from 1 to {PASSAGES_MAX}, not {limit}")
    if not 0 <= score_threshold <= 1:
        raise StartError(f"--score-threshold must be from 0 to 1, not {score_threshold}")
    lines = await asyncio.to_thread(read_questions, Path(questions))
    async with (
        open_embedders(config) as embedders,
        open_reranker(config) as reranker,
        open_tenant(config, tenant) as (database, tenant_id),
    ):
        passages = PassageStore(database)
        found = await passages.get(tenant_id, store)
        resolved = await resolve(lines, tenant_id=tenant_id, store=passages, store_id=found.id)
        if not resolved.questions:
            raise UnusableQuestions(f"{questions}: no line matches anything in the store; {resolved.errors[0]}")
        check_model(found, embedders)
        await embedders.get(found.embedding_model)  # its load time is not part of the measurement
        with tqdm(total=len(resolved.questions), unit=" questions", disable=None) as bar:
            evaluation = await evaluate(
                resolved.questions,
                Retriever(passages, embedders, reranker=reranker),
                tenant_id=tenant_id,
                store=found.id,
                limit=limit,
                score_threshold=score_threshold,
                progress=bar.update,
            )
    print(_json(evaluation, resolved) if as_json else _text(evaluation, resolved))
    if resolved.errors:
        print("\n".join(resolved.errors), file=sys.stderr)
        raise StartError(f"{len(resolved.errors)} of {len(lines)} lines match nothing in store {store}")


def _text(evaluation: Evaluation, resolved: Resolved) -> str:
    questions, missed = resolved.questions, evaluation.missed
    parts = [
        quality_table(evaluation),
        "",
        stage_table(evaluation),
        "",
        f"{len(questions)} questions, {evaluation.tokens:.0f} tokens of passages each, "
        f"{evaluation.skipped} stages over their budget",
        f"{len(missed)} questions whose answer was not in the passages that the model gets",
        *(f"  {questions[index].text}" for index in missed[:MISSED_SHOWN_MAX]),
        *(["  ..."] if len(missed) > MISSED_SHOWN_MAX else []),
    ]
    return "\n".join(parts)


def _json(evaluation: Evaluation, resolved: Resolved) -> str:
    missed = [resolved.questions[index].text for index in evaluation.missed]
    report = as_dict(evaluation) | {"missed": missed, "unresolved": resolved.errors}
    return orjson.dumps(report, option=orjson.OPT_INDENT_2).decode()
