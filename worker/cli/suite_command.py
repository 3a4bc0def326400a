"""`firsttoken eval suite`: run cases against two configurations, and fail if the first one is worse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import orjson
from tqdm import tqdm

from worker.cli.evals.eval_client import EvalClient, session
from worker.cli.evals.eval_runner import Judge, run_cases
from worker.cli.evals.eval_target import NOTHING, Endpoint, EvalTarget, LocalWorker, Recording, eval_target, started
from worker.cli.evals.outcome import Outcome, Result
from worker.cli.evals.report import as_json, markdown, picture, read_recorded, table
from worker.cli.evals.suite import Suite, read_suites
from worker.config import Config
from worker.errors import StartError
from worker.home import KEY_CHARS_MAX, Home, write_atomically


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
    judges = eval_target("--judge", judge, judge_key_file) if judge is not None else None
    if isinstance(one, Recording):
        raise StartError("--model must be a model or a server: give the earlier run as --against")
    if suite.asks_judge and judges is None:
        raise StartError("some cases need a judge model: name one with --judge")
    async with AsyncExitStack() as stack:
        known = (
            await asyncio.to_thread(read_recorded, other.path, suite.cases) if isinstance(other, Recording) else None
        )
        http = await stack.enter_async_context(session())
        sides = [one, *([other] if other is not None and known is None else [])]
        clients = [await stack.enter_async_context(open_side(http, each, config, suite)) for each in sides]
        asked = await stack.enter_async_context(open_side(http, judges, config, suite)) if judges is not None else None
        repeated = sum(case.repeat for case in suite.cases)
        with tqdm(total=len(suite.cases), unit=" cases", disable=None) as bar:
            found = await run_cases(
                suite.cases, clients, Judge(asked) if asked else None, at_once=at_once, progress=bar.update
            )
    before = known[1] if known else found[1] if other is not None else None
    names = (str(one), None if other is None else f"{known[0]}, recorded" if known else str(other))
    outcome = Outcome(names, found[0], before, margin, slower, known is None, _notes(found[0], before, repeated))
    for line in table(outcome):
        print(line)
    await asyncio.to_thread(_write, outcome, json_file, report)
    if outcome.verdict != "not worse":
        raise Worse(f"{one} does not pass the gate against {names[1]}: {outcome.verdict}")


@asynccontextmanager
async def open_side(
    http: aiohttp.ClientSession, wanted: EvalTarget, config: Config, suite: Suite
) -> AsyncIterator[EvalClient]:
    match wanted:
        case LocalWorker():
            searches = any(case.stores for case in suite.cases)
            documents = suite.documents if searches else NOTHING
            async with started(wanted, documents, Home(config.home).models) as (url, key):
                client = EvalClient(http, url, key)
                await client.check()
                yield client
        case Endpoint(model, url, key_file):
            client = EvalClient(http, url, await asyncio.to_thread(_key, config, url, key_file), model)
            await client.check()
            yield client
        case _:
            raise StartError("--judge must be a model or a server, not a recorded run")


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


def _notes(one: Sequence[Result], other: Sequence[Result] | None, repeated: int) -> list[str]:
    notes = []
    if failed := sum(result.failed for result in one):
        notes.append(f"{failed} of {len(one)} cases got no answer from --model: they score 0.")
    if other is not None and (failed := sum(result.failed for result in other)):
        notes.append(f"{failed} of {len(other)} cases got no answer from --against: they score 0 there.")
    if repeated > len(one):
        notes.append(f"{repeated} answers in total: some cases are repeated.")
    return notes


def _write(outcome: Outcome, json_file: Path | None, report: Path | None) -> None:
    if json_file is not None:
        write_atomically(json_file, orjson.dumps(as_json(outcome), option=orjson.OPT_INDENT_2) + b"\n")
    if report is not None:
        image = report.with_suffix(".svg") if outcome.other is not None else None
        if image is not None:
            write_atomically(image, picture(outcome).encode())
        write_atomically(report, markdown(outcome, image.name if image else None).encode())
