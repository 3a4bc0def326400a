"""`firsttoken eval cases`, `export` and `replay`: stored answers of one tenant, as cases, as examples for fine-tuning,
and run again on another configuration."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
from tqdm import tqdm

from agents.store.answered import Answered, answered
from worker.cli.evals import replay_report
from worker.cli.evals.answer import Answer
from worker.cli.evals.eval_client import EvalClient, session
from worker.cli.evals.eval_runner import run_cases
from worker.cli.evals.eval_target import LocalWorker, Recording, eval_target
from worker.cli.evals.replay_report import ReplayedTurn, totals
from worker.cli.evals.stored_cases import case_of, example_of, said_in
from worker.cli.evals.suite import Case, Suite
from worker.cli.suite_command import open_side
from worker.cli.tenant import EVERYBODY, open_tenant
from worker.config import Config
from worker.errors import StartError
from worker.home import write_atomically
from worker.telemetry.latency.answer_list import WHYS, Why, accepted_answers
from worker.telemetry.traces import Traces

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


async def replay(
    config: Config,
    *,
    tenant: str,
    candidate: str,
    key_file: Path | None,
    rated: str,
    limit: int,
    at_once: int,
    json_file: Path | None,
    report: Path | None,
) -> None:
    """Prints the durations of spans then and now. Raises StartError."""
    asked = eval_target("--model", candidate, key_file)
    if isinstance(asked, Recording):
        raise StartError("--model must be a model, or NAME@URL of a server")
    async with open_tenant(config, tenant) as (database, tenant_id):
        found = await answered(database, tenant_id, None if rated == "any" else rated, limit)
        traces = Traces(database)
        before = [await traces.get(EVERYBODY, answer.id) for answer in found]
    turns = [
        (answer, case, totals(trace["spans"]) if trace else {})
        for answer, trace in zip(found, before, strict=True)
        if (case := _case(answer, searches=not isinstance(asked, LocalWorker))) is not None
    ]
    if not turns:
        raise StartError(f"tenant {tenant} has no stored answers that can be replayed")
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(session())
        client = await stack.enter_async_context(open_side(http, asked, config, Suite(())))
        done = await _asked_again(client, turns, at_once)
    print("\n".join(replay_report.table(done)))
    if json_file is not None:
        told = orjson.dumps(replay_report.as_json(done, str(asked)), option=orjson.OPT_INDENT_2)
        await asyncio.to_thread(write_atomically, json_file, told + b"\n")
    if report is not None:
        await asyncio.to_thread(write_atomically, report, replay_report.markdown(done, str(asked)).encode())


async def _asked_again(
    client: EvalClient, turns: Sequence[tuple[Answered, Case, dict[str, float]]], at_once: int
) -> list[ReplayedTurn]:
    heard: dict[int, Answer] = {}

    def note(number: int, _: int, answer: Answer) -> None:
        heard[number] = answer

    cases = [case for _, case, _ in turns]
    with tqdm(total=len(turns), unit=" turns", disable=None) as bar:
        await run_cases(cases, [client], None, at_once=at_once, progress=bar.update, note=note)
    return [_replayed(stored, before, heard[number]) for number, (stored, _, before) in enumerate(turns)]


def _replayed(stored: Answered, before: dict[str, float], answer: Answer) -> ReplayedTurn:
    calls = "".join(f" {call.name}({call.arguments})" for call in answer.calls)
    output = stored.body.get("output") or ()
    called = "".join(f" {i['name']}({i['arguments']})" for i in output if i["type"] == "function_call")
    said, now = said_in(stored) + called, answer.text + calls
    return ReplayedTurn(stored.id, before, totals(answer.spans), said, now, answer.error)


def _case(answer: Answered, *, searches: bool) -> Case | None:
    """A worker that is started for it has none of the tenant's documents."""
    told = case_of(answer, judged=False)
    if told is None or ("stores" in told and not searches):
        return None
    return Case.model_validate({**told, "expect": {"like": said_in(answer) or "-"}})


def _print(lines: Sequence[dict[str, Any]], found: Sequence[Answered], nothing: str) -> None:
    if not lines:
        left_out = f" ({len(found)} were left out)" if found else ""
        raise StartError(nothing + left_out)
    for line in lines:
        print(orjson.dumps(line).decode())
