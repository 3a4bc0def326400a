"""`firsttoken canary`: try an agent on a share of another's conversations, and decide by the outcome."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import isnan
from pathlib import Path
from uuid import UUID

import orjson
from tqdm import tqdm

from agents.store.responses import Answered
from worker.auth.keys import LOCAL_TENANT
from worker.cli.eval_commands import open_side
from worker.cli.evals.eval_runner import Judge, eval_target
from worker.cli.evals.stored_cases import case_of, said_in
from worker.cli.evals.suite import Answer, Case, Suite
from worker.cli.evals.table import aligned
from worker.cli.tenant import command_actor, open_tenant
from worker.config import Config
from worker.errors import StartError
from worker.lifecycle.agent_files import read_agents
from worker.telemetry.canaries import AlreadyExists, CanaryStore
from worker.telemetry.trial import (
    DECIDED_IN,
    Canary,
    Evidence,
    Finding,
    Proposal,
    State,
    Vote,
    canary_report,
    findings,
    judge,
)

HEAD = ("", "CONTROL", "TREATMENT", "DIFFERENCE", "MARGIN", "PAIRS", "VERDICT")


async def start_canary(
    config: Config, *, name: str, agent: str, treatment: str, share: float, margins: Sequence[tuple[str, float]]
) -> None:
    proposal = Proposal(name, agent, treatment, share, dict(margins))
    if problem := proposal.problem(read_agents(config).agents):
        raise StartError(f"{problem[1]} (--{problem[0].removesuffix('s')})")
    async with _opened(config) as (store, auditor):
        try:
            await store.start(proposal, command_actor(), auditor)
        except AlreadyExists as error:
            raise StartError(f"canary {name} cannot be started: {error} (see `firsttoken canary status`)") from None
    print(f"{treatment} will answer {share:.0%} of the conversations of {_of(agent)} on all workers within seconds.")
    print(f"To compare: `firsttoken canary status {name}`. If the treatment is worse, it is rolled back automatically.")


async def show_canaries(config: Config, *, name: str | None, as_json: bool) -> None:
    async with _opened(config) as (store, _):
        known = await store.all()
        shown = [each for each in known if (each.name == name if name else each.is_live)]
        if name and not shown:
            raise missing(name)
        told = [(each, await store.evidence(each)) for each in shown]
    if not told and not as_json:
        print("no canary is running: start one with `firsttoken canary start NAME --treatment AGENT`")
    for canary, evidence in told:
        lines = [orjson.dumps(canary_report(canary, evidence)).decode()] if as_json else report(canary, evidence)
        print("\n".join(lines))


async def promote_canary(config: Config, *, name: str) -> None:
    canary = await _change(config, name, State.PROMOTED)
    print(f"{canary.treatment} now answers all conversations of {_of(canary.agent)}.")
    print(f"To make it permanent, change the file of --agents, then end this with `firsttoken canary abort {name}`.")


async def abort_canary(config: Config, *, name: str) -> None:
    canary = await _change(config, name, State.ABORTED)
    print(f"{_of(canary.agent)} answers all of its conversations again.")


async def _change(config: Config, name: str, after: State) -> Canary:
    async with _opened(config) as (store, auditor):
        canary = await store.named(name)
        if canary is None:
            raise missing(name)
        changed = canary.state in DECIDED_IN[after] and await store.change(
            *(name, canary.state, after, "by command", command_actor(), auditor)
        )
    if not changed:
        raise StartError(f"canary {name} is {canary.state.replace('_', ' ')}")
    return canary


def report(canary: Canary, evidence: Evidence) -> list[str]:
    """For people: both arms side by side, and what to do."""
    control, treated = (evidence.conversations(treated=kind) for kind in (False, True))
    lines = [
        f"{canary.name}: {canary.treatment} for {canary.share:.0%} of {_of(canary.agent)}, {_state(canary)}",
        f"{control} conversations in the control group, {treated} in the treatment group",
        *aligned([HEAD, *(_cells(each) for each in findings(evidence, canary.margins))], texts=(0, 6)),
    ]
    if canary.state is State.RUNNING:
        verdict = judge(evidence, canary.margins)
        lines.append(f"{verdict.decision}: {verdict.reason}")
    return lines


def _cells(finding: Finding) -> Sequence[str]:
    return (
        finding.measure,
        _shown(finding.control, finding.unit),
        _shown(finding.treatment, finding.unit),
        f"{finding.low:+.3f} .. {finding.high:+.3f}",
        f"{finding.margin:.2f}",
        str(finding.pairs),
        finding.verdict,
    )


def _shown(typical: float, unit: str) -> str:
    if isnan(typical):
        return "-"
    if unit == "price":
        return f"{typical:.3g}"
    return f"{typical:.0f} {unit}" if unit else f"{typical:.1%}"


def _state(canary: Canary) -> str:
    said = canary.state.replace("_", " ")
    return f"{said}: {canary.reason}" if canary.reason else said


def _of(agent: str) -> str:
    return f"agent {agent}" if agent else "requests without an agent"


def missing(name: str) -> StartError:
    return StartError(f"there is no canary {name}: see `firsttoken canary status`")


@asynccontextmanager
async def _opened(config: Config) -> AsyncIterator[tuple[CanaryStore, UUID]]:
    """The store, and the tenant whose audit log records the changes."""
    async with open_tenant(config, LOCAL_TENANT) as (database, auditor):
        yield CanaryStore(database), auditor


CRITERION = (
    "It does what was asked, or says what stands in the way. Nothing in it contradicts the conversation or itself, and "
    "it claims nothing that nobody can know from the conversation."
)


async def grade_canary(
    config: Config, *, name: str, judge: str, key_file: Path | None, limit: int, criterion: str | None, tenant: str
) -> None:
    """What cannot be graded, such as an answer about files, is skipped."""
    asked = eval_target("--judge", judge, key_file)
    async with open_tenant(config, tenant) as (database, tenant_id):
        store = CanaryStore(database)
        canary = await store.named(name)
        if canary is None:
            raise missing(name)
        if canary.state is not State.RUNNING:
            raise StartError(f"canary {name} is {canary.state.replace('_', ' ')}")
        asking = criterion or CRITERION
        found = await store.ungraded(tenant_id, canary, limit)
        cases = [(unit, case, answer) for unit, answer in found if (case := _case(answer, asking)) is not None]
        if not cases:
            raise StartError(f"tenant {tenant} has no ungraded stored answers of canary {name}")
        async with open_side(asked, config, Suite(())) as client:
            grader, scores = Judge(client), list[float]()
            for unit, case, answer in tqdm(cases, unit=" answers", disable=None):
                score = await grader.judged(case, Answer(said_in(answer)))
                await store.vote([(canary.id, unit, Vote(False, "graded", 1 - score))])  # stored with its arm
                scores.append(score)
    print(f"{len(scores)} answers graded, {sum(scores):.0f} of them correct: see `firsttoken canary status {name}`")


def _case(answer: Answered, criterion: str) -> Case | None:
    told = case_of(answer, judged=True)
    return None if told is None else Case.model_validate({**told, "expect": {"judge": criterion}, "stores": []})
