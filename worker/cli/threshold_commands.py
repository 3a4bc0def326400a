"""`firsttoken eval cache` and `eval route`: thresholds of the semantic cache and of a cascade, chosen from cases."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
from tqdm import tqdm

from agents.routing.policy import Cascade
from worker.cli.evals import cascade_report
from worker.cli.evals.answer import Answer
from worker.cli.evals.cascade_curve import PROBE, CascadeTrial, Fit, cascade_trial, fit, probe
from worker.cli.evals.eval_client import EvalClient, session
from worker.cli.evals.eval_runner import Judge, run_cases
from worker.cli.evals.eval_target import NOTHING, LocalWorker, eval_target, started
from worker.cli.evals.similarity_threshold import Hits, Question, fit_threshold
from worker.cli.evals.suite import Case, Suite, read_suites
from worker.cli.suite_command import open_side
from worker.config import Config
from worker.engines.model_file import ModelFile, read_models
from worker.engines.retrieval_models import open_embedders
from worker.errors import StartError
from worker.home import FOLDER_OF_ROOT, Home, write_atomically


async def evaluate_cache(config: Config, *, files: Sequence[Path], wrong: float, as_json: bool) -> None:
    """Raises StartError if there are too few cases to decide."""
    suite = await asyncio.to_thread(read_suites, files)
    cases = [case for case in suite.cases if not case.tools and case.said[-1]["role"] == "user"]
    Home(config.home).prepare()
    async with open_embedders(config) as embedders:
        asked = [(case, await embedders.default.embed_query(case.question, salt="")) for case in cases]
        questions = [Question(case.question, *_marks(case), vectors.vector) for case, vectors in asked]
        name = embedders.default.name
    found = fit_threshold(questions, wrong)
    if not found.fitted.repeated or not found.held_out.repeated:
        raise StartError(
            f"too few of the {len(suite.cases)} cases ask the same question in other words: add some with the same "
            "`expect`, and without tools"
        )
    if as_json:
        told = {"threshold": found.value, "embedder": name}
        halves = {"fitted": found.fitted, "held_out": found.held_out}
        print(orjson.dumps({**told, **{half: _told(hits) for half, hits in halves.items()}}).decode())
        return
    if found.value is None:
        raise StartError(
            f"no similarity threshold makes {1 - wrong:.0%} of the hits correct: leave the semantic cache off"
        )
    print(f"--semantic-cache {found.value:g}    # similarity by {name}")
    for half, hits in (("fitted on", found.fitted), ("held out", found.held_out)):
        print(
            f"{half:<10} {hits.questions} questions, {hits.repeated} of them with paraphrases: {hits.hits} "
            f"hits, {hits.wrong} of them wrong ({hits.wrong_share:.1%}); {hits.found_share:.0%} of the possible hits "
            "were found"
        )


def _marks(case: Case) -> tuple[str, str]:
    """Fingerprints of the text before the question, and of the right answer."""
    before = (case.instructions, case.stores, case.said[:-1])
    expected = case.expect.model_dump_json(by_alias=True, exclude_none=True)
    return orjson.dumps(before).decode(), expected


def _told(hits: Hits) -> dict[str, float]:
    counts = {"questions": hits.questions, "repeated": hits.repeated, "hits": hits.hits, "wrong": hits.wrong}
    return {**counts, "wrong_share": round(hits.wrong_share, 4), "found_share": round(hits.found_share, 4)}


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
    if suite.asks_judge and judge is None:
        raise StartError("some cases need a judge model: name one with --judge")
    cases = await _asked(config, suite, models, policy, judge, key_file, at_once)
    try:
        found = await asyncio.to_thread(fit, cases, keep)
    except ValueError as error:
        raise StartError(f"{error}; {len(suite.cases)} were asked") from None
    print("\n".join(cascade_report.table(found, name, policy)))
    if policy_file is None:
        print(f"\n{cascade_report.fragment(found, name, policy)}", end="")
    await asyncio.to_thread(_write, found, name, policy, json_file, report, policy_file)


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
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firsttoken-route-")))
        os.chmod(folder, FOLDER_OF_ROOT)
        derived = folder / "models.toml"
        derived.write_text(path.read_text("utf-8") + probe(policy), "utf-8")
        documents = suite.documents if searches else NOTHING
        private = started(LocalWorker(("--models", str(derived))), documents, Home(config.home).models)
        url, key = await stack.enter_async_context(private)
        http = await stack.enter_async_context(session())
        clients = [EvalClient(http, url, key, model) for model in (PROBE, policy.then)]
        for client in clients:
            await client.check()
        judges = eval_target("--judge", judge, key_file) if judge is not None else None
        asked = await stack.enter_async_context(open_side(http, judges, config, suite)) if judges else None
        with tqdm(total=len(suite.cases), unit=" cases", disable=None) as bar:
            one, other = await run_cases(
                *(suite.cases, clients, Judge(asked) if asked else None),
                at_once=at_once,
                progress=bar.update,
                note=note,
            )
    prices = models.models[policy.first].price.engine_second, models.models[policy.then].price.engine_second
    pairs = enumerate(zip(one, other, strict=True))
    cases = [cascade_trial(first, then, heard[number], policy, prices) for number, (first, then) in pairs]
    return [case for case in cases if case is not None]


def _write(
    found: Fit, name: str, policy: Cascade, json_file: Path | None, report: Path | None, policy_file: Path | None
) -> None:
    if json_file is not None:
        told = cascade_report.as_json(found, name, policy)
        write_atomically(json_file, orjson.dumps(told, option=orjson.OPT_INDENT_2) + b"\n")
    if policy_file is not None:
        write_atomically(policy_file, cascade_report.fragment(found, name, policy).encode())
    if report is not None:
        image = report.with_suffix(".svg")
        write_atomically(image, cascade_report.picture(found, policy).encode())
        write_atomically(report, cascade_report.markdown(found, name, policy, image.name).encode())
