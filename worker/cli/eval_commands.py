"""`firsttoken eval`: cases run against two configurations, which fails if the first one is worse; and stored answers of
a tenant as cases and as examples for fine-tuning."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from agents.store.responses import Answered, answered
from worker.cli.evals.eval_client import EvalClient, session
from worker.cli.evals.eval_runner import (
    NOTHING,
    Endpoint,
    EvalTarget,
    Judge,
    LocalWorker,
    Recording,
    eval_target,
    run_cases,
    started,
)
from worker.cli.evals.outcome import Outcome, Result
from worker.cli.evals.report import as_json, markdown, picture, read_recorded, table
from worker.cli.evals.stored_cases import case_of, example_of
from worker.cli.evals.suite import Suite, read_suites
from worker.cli.tenant import open_tenant
from worker.config import Config
from worker.errors import StartError
from worker.home import KEY_CHARS_MAX, Home, write_atomically
from worker.telemetry.latency.answer_list import WHYS, Why, accepted_answers


class Worse(StartError):
    """The gate has failed; the message says why."""


async def evaluate_suite(
    config: Config,
    *,
    files: Sequence[Path],
    candidate: str,
    against: str | None,
    judge: str | None,
    model_key_file: Path | None,
    against_key_file: Path | None,
    judge_key_file: Path | None,
    margin: float,
    slower: float | None,
    at_once: int,
    json_file: Path | None,
    report: Path | None,
) -> None:
    """Prints the table, writes the reports, then raises Worse. Raises StartError if the suite cannot run."""
    suite = await asyncio.to_thread(read_suites, files)
    one = eval_target("--model", candidate, model_key_file)
    other = eval_target("--against", against, against_key_file) if against is not None else None
    if isinstance(one, Recording):
        raise StartError("--model must be a model or a server: give the earlier run as --against")
    async with AsyncExitStack() as stack:
        known = (
            await asyncio.to_thread(read_recorded, other.path, suite.cases) if isinstance(other, Recording) else None
        )
        judging = await stack.enter_async_context(open_judge(judge, judge_key_file, config, suite))
        sides = [one, *([other] if other is not None and known is None else [])]
        clients = [await stack.enter_async_context(open_side(each, config, suite)) for each in sides]
        repeated = sum(case.repeat for case in suite.cases)
        found = await run_cases(suite.cases, clients, judging, at_once=at_once)
    before = known[1] if known else found[1] if other is not None else None
    names = (str(one), None if other is None else f"{known[0]}, recorded" if known else str(other))
    outcome = Outcome(names, found[0], before, margin, slower, known is None, notes(found[0], before, repeated))
    for line in table(outcome):
        print(line)
    await asyncio.to_thread(_write_reports, outcome, json_file, report)
    if outcome.verdict != "not worse":
        raise Worse(f"{one} does not pass the gate against {names[1]}: {outcome.verdict}")


@asynccontextmanager
async def open_side(wanted: EvalTarget, config: Config, suite: Suite) -> AsyncIterator[EvalClient]:
    match wanted:
        case LocalWorker():
            searches = any(case.stores for case in suite.cases)
            documents = suite.documents if searches else NOTHING
            async with started(wanted, documents, Home(config.home).models) as (url, key), session() as http:
                client = EvalClient(http, url, key)
                await client.check()
                yield client
        case Endpoint(model, url, key_file):
            key = await asyncio.to_thread(_key, config, url, key_file)
            async with session() as http:
                client = EvalClient(http, url, key, model)
                await client.check()
                yield client
        case _:
            raise StartError("--judge must be a model or a server, not a recorded run")


@asynccontextmanager
async def open_judge(
    judge: str | None, key_file: Path | None, config: Config, suite: Suite
) -> AsyncIterator[Judge | None]:
    """Raises StartError if none is named and a case needs one."""
    if judge is not None:
        async with open_side(eval_target("--judge", judge, key_file), config, suite) as client:
            yield Judge(client)
    elif suite.asks_judge:
        raise StartError("some cases need a judge model: name one with --judge")
    else:
        yield None


def _key(config: Config, url: str, key_file: Path | None) -> str:
    """The key of the file, or that of the worker of this home folder if it is the target."""
    if key_file is not None:
        with key_file.open(encoding="ascii") as file:
            return file.read(KEY_CHARS_MAX).strip()
    home = Home(config.home)
    try:
        known = orjson.loads(home.ready_file.read_bytes())
    except (OSError, ValueError):
        return ""
    return str(known.get("api_key", "")) if known.get("url") == url else ""


def notes(one: Sequence[Result], other: Sequence[Result] | None, repeated: int) -> list[str]:
    notes = []
    for side, results in (("--model", one), ("--against", other or ())):
        if failed := [result for result in results if result.failed]:
            why = next((f" The first of them: {error}" for each in failed if (error := each.answer.get("error"))), "")
            notes.append(f"{len(failed)} of {len(results)} cases got no answer from {side}: they score 0.{why}")
    if repeated > len(one):
        notes.append(f"{repeated} answers in total: some cases are repeated.")
    return notes


def _write_reports(outcome: Outcome, json_file: Path | None, report: Path | None) -> None:
    if json_file is not None:
        write_atomically(json_file, orjson.dumps(as_json(outcome), option=orjson.OPT_INDENT_2) + b"\n")
    if report is not None:
        beside = report.with_suffix(".svg") if outcome.other is not None else None
        if beside:
            write_atomically(beside, picture(outcome).encode())
        write_atomically(report, markdown(outcome, beside.name if beside else "").encode())


READ_FIRST = (
    "Addresses, numbers and keys were redacted, but names cannot be recognised: read the {} before you share them."
)


async def write_cases(config: Config, *, tenant: str, rated: str, limit: int, judged: bool) -> None:
    """Prints lines of JSON. Raises StartError if there is no such answer."""
    async with open_tenant(config, tenant) as (database, tenant_id):
        found = await answered(database, tenant_id, None if rated == "any" else rated, limit)
    cases = [case for answer in found if (case := case_of(answer, judged)) is not None]
    which = "stored answers" if rated == "any" else f"answers that were rated {rated}"
    _print(cases, found, f"tenant {tenant} has no {which} that can become a case")
    print(f"{len(cases)} cases from {len(found)} answers. {READ_FIRST.format('cases')}", file=sys.stderr)


async def export_answers(config: Config, *, tenant: str, why: Sequence[Why], limit: int) -> None:
    """Prints lines of JSON. Raises StartError if there is no such answer."""
    async with open_tenant(config, tenant) as (database, tenant_id):
        found = await accepted_answers(database, tenant_id, why or WHYS, limit)
    told = [example for answer in found if (example := example_of(answer)) is not None]
    examples = list({orjson.dumps(example): example for example in told}.values())  # duplicates get no extra weight
    _print(examples, found, f"tenant {tenant} has no accepted answers to train on")
    print(f"{len(examples)} of {len(found)} accepted answers. {READ_FIRST.format('lines')}", file=sys.stderr)


def _print(lines: Sequence[dict[str, Any]], found: Sequence[Answered], nothing: str) -> None:
    if not lines:
        left_out = f" ({len(found)} were left out)" if found else ""
        raise StartError(nothing + left_out)
    for line in lines:
        print(orjson.dumps(line).decode())
