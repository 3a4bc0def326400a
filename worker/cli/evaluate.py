"""`firsttoken eval retrieval` and `route`: the recall and speed of each stage of a search by judged questions, and the
thresholds of a cascade, chosen from cases.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import orjson
from tqdm import tqdm

from agents.routing.policy import Cascade
from retrieval.config import PASSAGES_MAX
from retrieval.embedding import check_model
from retrieval.quality.evaluate import Evaluation, evaluate
from retrieval.quality.questions import Resolved, UnusableQuestions, read_questions, resolve
from retrieval.quality.report import as_dict, quality_table, stage_table
from retrieval.retriever import Retriever
from retrieval.store import PassageStore
from worker.cli.eval_commands import open_judge, write_reports
from worker.cli.evals import cascade_curve
from worker.cli.evals.cascade_curve import PROBE, CascadeTrial, cascade_trial, fit, probe
from worker.cli.evals.eval_client import EvalClient, session
from worker.cli.evals.eval_runner import NOTHING, LocalWorker, run_cases, started
from worker.cli.evals.suite import Answer, Suite, read_suites
from worker.cli.tenant import open_tenant
from worker.config import Config
from worker.engines.engine_config import open_embedders, open_reranker
from worker.engines.model_file import ModelFile, read_models
from worker.errors import StartError
from worker.home import FOLDER_OF_ROOT, Home, write_atomically

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


async def evaluate_route(
    config: Config,
    *,
    files: Sequence[Path],
    route: str | None,
    keep: float,
    judge: str | None,
    key_file: Path | None,
    at_once: int,
    json_file: Path | None,
    report: Path | None,
    policy_file: Path | None,
) -> None:
    """Prints a table and the policy, and writes the requested files. Raises StartError."""
    suite = await asyncio.to_thread(read_suites, files)
    models = await asyncio.to_thread(read_models, config)
    if models is None:
        raise StartError("there is no models.toml in the home folder: name a file with a cascade route with --models")
    name, policy = _cascade(models, route)
    cases = await _asked(config, suite, models, policy, judge, key_file, at_once)
    try:
        found = await asyncio.to_thread(fit, cases, keep)
    except ValueError as error:
        raise StartError(f"{error}; {len(suite.cases)} were asked") from None
    print("\n".join(cascade_curve.table(found, name, policy)))
    route_table = cascade_curve.fragment(found, name, policy)
    if policy_file is None:
        print(f"\n{route_table}", end="")
    else:
        await asyncio.to_thread(write_atomically, policy_file, route_table.encode())
    told, image = cascade_curve.as_json(found, name, policy), cascade_curve.picture(found, policy)
    text = partial(cascade_curve.markdown, found, name, policy)
    await asyncio.to_thread(write_reports, json_file, told, report, text, image)


def _cascade(models: ModelFile, route: str | None) -> tuple[str, Cascade]:
    found = {name: policy for name, policy in models.routes.items() if isinstance(policy, Cascade)}
    if route is None and len(found) == 1:
        return next(iter(found.items()))
    if route in found:
        return route, found[route]
    known = ", ".join(found) or "none"
    missing = f"there is no cascade {route}" if route else "name the cascade with --route"
    raise StartError(f"{missing}: models.toml has {known}")


async def _asked(
    config: Config,
    suite: Suite,
    models: ModelFile,
    policy: Cascade,
    judge: str | None,
    key_file: Path | None,
    at_once: int,
) -> list[CascadeTrial]:
    """Every case on both models, by a worker that is started for it."""
    path = config.models or Home(config.home).models_file
    searches = any(case.stores for case in suite.cases)
    heard: dict[int, Answer] = {}

    def note(number: int, side: int, answer: Answer) -> None:
        if side == 0:
            heard[number] = answer

    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(session())
        judging = await stack.enter_async_context(open_judge(judge, key_file, config, suite))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firsttoken-route-")))
        os.chmod(folder, FOLDER_OF_ROOT)
        derived = folder / "models.toml"
        derived.write_text(path.read_text("utf-8") + probe(policy), "utf-8")
        documents = suite.documents if searches else NOTHING
        private = started(LocalWorker(("--models", str(derived))), documents, Home(config.home).models)
        url, key = await stack.enter_async_context(private)
        clients = [EvalClient(http, url, key, model) for model in (PROBE, policy.then)]
        for client in clients:
            await client.check()
        one, other = await run_cases(suite.cases, clients, judging, at_once=at_once, note=note)
    prices = models.models[policy.first].price.engine_second, models.models[policy.then].price.engine_second
    pairs = enumerate(zip(one, other, strict=True))
    cases = [cascade_trial(first, then, heard[number], policy, prices) for number, (first, then) in pairs]
    return [case for case in cases if case is not None]
