"""`firsttoken canary grade`: a model grades stored answers of both arms, without knowing which is which."""

from __future__ import annotations

from pathlib import Path

from tqdm import tqdm

from agents.store.answered import Answered
from worker.canary.store import CanaryStore
from worker.canary.trial import State
from worker.canary.verdict import Vote
from worker.cli.canary_commands import missing
from worker.cli.suite_command import open_side
from worker.cli.tenant import open_tenant
from worker.config import Config
from worker.errors import StartError
from worker.evals.answer import Answer
from worker.evals.case import Case
from worker.evals.eval_client import session
from worker.evals.eval_target import eval_target
from worker.evals.judge import Judge
from worker.evals.stored_cases import case_of, said_in
from worker.evals.suite import Suite

CRITERION = (
    "It does what was asked, or says what stands in the way. Nothing in it contradicts the conversation or itself, and "
    "it claims nothing that nobody can know from the conversation."
)


async def grade_canary(
    config: Config, *, name: str, judge: str, key_file: Path | None, limit: int, criterion: str | None, tenant: str
) -> None:
    """What cannot be graded, such as an answer about files, is skipped."""
    asked = eval_target("--judge", judge, key_file)
    async with open_tenant(config, tenant) as (database, tenant_id), session() as http:
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
        async with open_side(http, asked, config, Suite(())) as client:
            grader, scores = Judge(client), list[float]()
            for unit, case, answer in tqdm(cases, unit=" answers", disable=None):
                score = await grader.judged(case, Answer(said_in(answer)))
                await store.vote([(canary.id, unit, Vote(False, "graded", 1 - score))])  # stored with its arm
                scores.append(score)
    print(f"{len(scores)} answers graded, {sum(scores):.0f} of them correct: see `firsttoken canary status {name}`")


def _case(answer: Answered, criterion: str) -> Case | None:
    told = case_of(answer, judged=True)
    return None if told is None else Case.model_validate({**told, "expect": {"judge": criterion}, "stores": []})
