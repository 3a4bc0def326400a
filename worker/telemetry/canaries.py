"""The canaries of this worker and their tables: which agent answers a conversation, and the outcome of its answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import asyncpg

from agents.definition import AgentRegistry, Definition
from agents.message import Item, Message
from agents.store.responses import Answered
from agents.turn import Arm, Turn
from inference.frozen import changed
from inference.trace import Trace
from migrations.pool import DATABASE_AWAY, Database
from worker.auth.audit import WORKER, Act, Actor, note
from worker.lifecycle.supervisor import Healthy, Supervised, Supervisor
from worker.runs.record import TurnRecord
from worker.telemetry.trial import (
    DECIDED_IN,
    Answer,
    Canary,
    Decision,
    Evidence,
    Proposal,
    State,
    Vote,
    canary_report,
    judge,
)

T = TypeVar("T")
# With the id of the canary and the digest of the conversation.
Waiting: TypeAlias = deque[tuple[UUID, str, T]]

log = logging.getLogger("firsttoken.canary")

SYNC_S = 2.0  # until all workers know a decision of one of them, or of a person
SILENT_S = 60.0
ACCOUNT_S = 2.0
CLOSE_S = 2.0
WAITING_MAX = 4096  # answers of a hundred bytes each, while the database is unavailable
JUDGED_PER_S = 500  # answers: a long canary is judged less often
SUFFERED = ("failed", "refused", "invalid")  # including errors that only the treatment makes of a valid request
UNJUDGED = ("cancelled",)
THUMBS = {"up": 0.0, "down": 1.0}  # as a harm


@dataclass(frozen=True, slots=True)
class Chosen:
    """The agent of a conversation, and its arm if it takes part in a canary."""

    definition: Definition
    arm: Arm | None = None

    def applied(self, turn: Turn) -> Turn:
        applied = self.definition.applied(turn)
        return changed(applied, arm=self.arm) if self.arm else applied


class Canaries:
    """`auditor` returns the tenant whose audit log records the changes."""

    def __init__(self, store: CanaryStore, auditor: Callable[[], Awaitable[UUID]]) -> None:
        self._store = store
        self._auditor = auditor
        self._live: Mapping[str, Canary] = {}
        self._waiting: Waiting[Answer] = deque(maxlen=WAITING_MAX)
        self._voted: Waiting[Vote] = deque(maxlen=WAITING_MAX)
        self._judged_again_at: dict[str, float] = {}  # of those that are live
        self._lacking: set[str] = set()
        self._task: Supervised | None = None
        self._accounts: dict[UUID, tuple[Canary, float, dict[str, Any]]] = {}  # until when they are fresh enough

    def start(self, supervisor: Supervisor) -> None:
        self._task = supervisor.start("canaries", self._follow, silent_s=SILENT_S)

    async def close(self) -> None:
        """Stop after storing the outcome of the last answers, once."""
        if self._task is not None:
            await self._task.stop()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._store_waiting()
        except DATABASE_AWAY as error:
            log.warning("the results of the last canary answers are lost: %r", error)

    def choose(
        self, usual: Definition, agent_registry: AgentRegistry, model: str, tenant_id: UUID, conversation: str
    ) -> Chosen:
        """The agent that the model of a request selects, or the one on trial in its place."""
        canary = self._live.get(agent_registry.name_of(model))
        if canary is None:
            return Chosen(usual)
        treatment = agent_registry.agents.get(canary.treatment)
        if treatment is None:
            self._lacks(canary)
            return Chosen(usual)
        arm = canary.arm(tenant_id, conversation)
        return Chosen(treatment if arm.treated else usual, arm)

    def note(self, record: TurnRecord) -> None:
        """Take a finished turn. Costs microseconds, and nothing without a canary."""
        arm = arm_in(record.trace.attributes)
        canary = self._running(arm)
        if arm is None or canary is None or record.status in UNJUDGED:
            return
        computed = record.prompt.total - record.prompt.cached + record.output_tokens
        late = None if record.within_target is None else not record.within_target
        failed = record.status in SUFFERED
        declined = record.trace.attributes.get("firsttoken.declined")
        answer = Answer(
            *(arm.treated, failed, late, record.ttft_ms, record.tpot_ms, computed),
            declined=declined if isinstance(declined, bool) else None,
            cost=record.taken.cost or None,
        )
        self._waiting.append((canary.id, arm.unit, answer))

    def rate(self, attributes: Mapping[str, Any], rating: str | None) -> None:
        """Take the rating of an answer whose trace has these attributes. Later ratings do not count."""
        arm = arm_in(attributes)
        canary = self._running(arm)
        if arm is not None and canary is not None and rating in THUMBS:
            self._voted.append((canary.id, arm.unit, Vote(arm.treated, "thumbs_down", THUMBS[rating])))

    async def accounts(self) -> list[dict[str, Any]]:
        """The reports of live canaries. The more expensive a comparison, the less often it is updated."""
        return [await self._account(canary) for canary in list(self._live.values())]

    async def begin(self, proposal: Proposal, by: Actor) -> dict[str, Any]:
        """Start it on its share of conversations, here at once and elsewhere within seconds. Raises AlreadyExists."""
        canary = await self._store.start(proposal, by, await self._auditor())
        await self._learn()
        return await self._account(canary)

    async def decide(self, name: str, after: State, by: Actor) -> bool | None:
        """Whether a person's decision was valid in the canary's state; None if there is no such canary."""
        canary = await self._store.named(name)
        if canary is None:
            return None
        if canary.state not in DECIDED_IN[after]:
            return False
        done = await self._store.change(name, canary.state, after, "by a person", by, await self._auditor())
        await self._learn()
        return done

    def _running(self, arm: Arm | None) -> Canary | None:
        """The canary of this arm, while its answers count."""
        running = (each for each in self._live.values() if each.state is State.RUNNING)
        return next((each for each in running if arm and each.name == arm.canary), None)

    async def _learn(self) -> None:
        self._live = {each.agent: each for each in await self._store.live()}
        names = {each.name for each in self._live.values()}
        self._judged_again_at = {name: at for name, at in self._judged_again_at.items() if name in names}

    async def _account(self, canary: Canary) -> dict[str, Any]:
        known = self._accounts.get(canary.id)
        if known is None or known[0].state is not canary.state or monotonic() >= known[1]:
            evidence = await self._store.evidence(canary)
            told = await asyncio.to_thread(canary_report, canary, evidence)
            known = (canary, monotonic() + ACCOUNT_S + len(evidence.answers) / JUDGED_PER_S, told)
            live = {each.id for each in self._live.values()}
            self._accounts = {id: told for id, told in self._accounts.items() if id in live} | {canary.id: known}
        return known[2]

    async def sync(self) -> None:
        """Store the outcomes of recent answers, judge, and load the current canaries."""
        heard = await self._store_waiting()
        for canary in self._live.values():
            if canary.id in heard:
                await self._judge(canary)
        await self._learn()

    async def _store_waiting(self) -> set[UUID]:
        """Returns the canaries that had something to store."""
        answers, self._waiting = self._waiting, deque(maxlen=WAITING_MAX)
        votes, self._voted = self._voted, deque(maxlen=WAITING_MAX)
        try:
            if answers:
                await self._store.add(answers)
            if votes:
                await self._store.vote(votes)
        except BaseException:
            self._waiting = deque((*answers, *self._waiting), WAITING_MAX)  # adding one again has no effect
            self._voted = deque((*votes, *self._voted), WAITING_MAX)
            raise
        return {canary_id for canary_id, _, _ in (*answers, *votes)}

    def _lacks(self, canary: Canary) -> None:
        if canary.name not in self._lacking:
            self._lacking.add(canary.name)
            log.warning("canary %s: this worker has no agent %s and does not take part", canary.name, canary.treatment)

    async def _judge(self, canary: Canary) -> None:
        if canary.state is not State.RUNNING or monotonic() < self._judged_again_at.get(canary.name, 0.0):
            return
        evidence = await self._store.evidence(canary)
        verdict = await asyncio.to_thread(judge, evidence, canary.margins)
        self._judged_again_at[canary.name] = monotonic() + len(evidence.answers) / JUDGED_PER_S
        if verdict.decision is not Decision.ROLL_BACK:
            return
        auditor = await self._auditor()
        if await self._store.change(canary.name, State.RUNNING, State.ROLLED_BACK, verdict.reason, WORKER, auditor):
            log.warning("canary %s is rolled back: %s", canary.name, verdict.reason)

    async def _follow(self, healthy: Healthy) -> None:
        while True:
            await self.sync()
            healthy()
            await asyncio.sleep(SYNC_S)


def note_arm(trace: Trace, arm: Arm) -> None:
    kind = "treatment" if arm.treated else "control"
    trace.attributes.update(canary=arm.canary, canary_arm=kind, canary_unit=arm.unit)


def arm_in(attributes: Mapping[str, Any]) -> Arm | None:
    """From the attributes of a trace."""
    if "canary" not in attributes:
        return None
    treated = attributes["canary_arm"] == "treatment"
    return Arm(str(attributes["canary"]), treated, str(attributes["canary_unit"]))


def first_question(items: Sequence[Item]) -> str:
    """What identifies a conversation whose client resends it in full each time: its first question."""
    return next((item.text for item in items if isinstance(item, Message) and item.role == "user"), "")


# Of one canary: with more it would hardly become clearer, and judging this many takes some hundredths of a second.
ANSWERS_MAX = 20_000
COLUMNS = "id, name, agent, treatment, share, margins, state, reason"


class AlreadyExists(Exception):
    """The name was used before, or the agent already has a canary; the message says which."""


class CanaryStore:
    """`auditor` is the tenant in whose audit log every change is recorded, in the transaction of the change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def start(self, proposal: Proposal, by: Actor, auditor: UUID) -> Canary:
        """Raises AlreadyExists."""
        async with self._database.tenant(auditor) as connection:
            try:
                row = await connection.fetchrow(
                    "insert into canaries (name, agent, treatment, share, margins) values ($1, $2, $3, $4, $5) "
                    f"returning {COLUMNS}",
                    *(proposal.name, proposal.agent, proposal.treatment, proposal.share, proposal.margins),
                )
            except asyncpg.UniqueViolationError as error:
                what = "agent has a canary already" if "live" in str(error.constraint_name) else "name was used before"
                raise AlreadyExists(f"the {what}") from None
            assert row is not None
            told = {"agent": proposal.agent, "treatment": proposal.treatment, "share": proposal.share}
            await note(connection, auditor, by, Act.CANARY_STARTED, proposal.name, **told)
        return _canary(row)

    async def change(self, name: str, before: State, after: State, reason: str, by: Actor, auditor: UUID) -> bool:
        """Whether it was in the state `before`: of concurrent changes, only one succeeds."""
        async with self._database.tenant(auditor) as connection:
            row = await connection.fetchrow(
                "update canaries set state = $3, reason = $4, ended_at = now(), "
                "promoted_at = case when $3 = 'promoted' then now() else promoted_at end "
                "where name = $1 and state = $2 returning name",
                *(name, before, after, reason),
            )
            if row is not None:
                await note(connection, auditor, by, Act.CANARY_CHANGED, name, state=after, reason=reason)
        return row is not None

    async def live(self) -> list[Canary]:
        rows = await self._database.fetch(
            f"select {COLUMNS} from canaries where state in ('running', 'promoted') order by started_at"
        )
        return [_canary(row) for row in rows]

    async def all(self) -> list[Canary]:
        """Newest first."""
        rows = await self._database.fetch(f"select {COLUMNS} from canaries order by started_at desc limit 100")
        return [_canary(row) for row in rows]

    async def named(self, name: str) -> Canary | None:
        rows = await self._database.fetch(f"select {COLUMNS} from canaries where name = $1", name)
        return _canary(rows[0]) if rows else None

    async def add(self, answers: Iterable[tuple[UUID, str, Answer]]) -> None:
        """Each with the canary's id and the digest of its conversation, whose first answer counts."""
        rows = [{"canary_id": str(canary_id), "unit": unit, **asdict(answer)} for canary_id, unit, answer in answers]
        await self._database.fetch(
            """
            with full_ones as (
                select canary_id from canary_answers
                 where canary_id = any($2::uuid[]) group by 1 having count(*) >= $3
            )
            insert into canary_answers (canary_id, unit, treated, failed, late, ttft_ms, tpot_ms, tokens,
                                        declined, cost)
            select canary_id, decode(unit, 'hex'), treated, failed, late, ttft_ms, tpot_ms, tokens, declined, cost
              from jsonb_to_recordset($1) as r(canary_id uuid, unit text, treated boolean, failed boolean,
                                               late boolean, ttft_ms real, tpot_ms real, tokens integer,
                                               declined boolean, cost real)
             where canary_id not in (select canary_id from full_ones)
                on conflict do nothing
            """,
            *(rows, {row["canary_id"] for row in rows}, ANSWERS_MAX),
        )

    async def vote(self, votes: Iterable[tuple[UUID, str, Vote]]) -> None:
        """Each with the canary's id and the digest of a conversation, which is rated once per measure. One without a
        stored answer is skipped."""
        first = {(str(id), unit, vote.measure): vote.harm for id, unit, vote in reversed(list(votes))}
        rows = [
            {"canary_id": id, "unit": unit, "measure": measure, "harm": harm, "ordinal": ordinal}
            for ordinal, ((id, unit, measure), harm) in enumerate(reversed(first.items()))
        ]
        await self._database.fetch(
            """
            insert into canary_votes (canary_id, unit, measure, treated, harm)
            select a.canary_id, a.unit, r.measure, a.treated, r.harm
              from jsonb_to_recordset($1) as r(canary_id uuid, unit text, measure text, harm real, ordinal int)
              join canary_answers a on a.canary_id = r.canary_id and a.unit = decode(r.unit, 'hex')
             order by r.ordinal
                on conflict do nothing
            """,
            rows,
        )

    async def evidence(self, canary: Canary) -> Evidence:
        """In order of arrival, at most ANSWERS_MAX of each measure."""
        answers = await self._database.fetch(
            "select treated, failed, late, ttft_ms, tpot_ms, tokens, declined, cost from canary_answers "
            "where canary_id = $1 order by position limit $2",
            *(canary.id, ANSWERS_MAX),
        )
        votes = await self._database.fetch(
            "select treated, measure, harm from canary_votes where canary_id = $1 order by position", canary.id
        )
        return Evidence([Answer(*row) for row in answers], [Vote(*row) for row in votes])

    async def ungraded(self, tenant_id: UUID, canary: Canary, limit: int) -> list[tuple[str, Answered]]:
        """Stored answers of one tenant that are part of a canary and not graded yet: the newest, the same number of
        both arms, in an order that does not reveal the arm."""
        rows = await self._database.rows(
            tenant_id,
            """
            with found as (
                select distinct on (unit) unit, treated, r.id, r.input, r.body, r.created_at
                  from canary_answers a
                  join traces t on t.tenant_id = $1 and t.attributes->>'canary' = $3
                               and t.attributes->>'canary_unit' = encode(a.unit, 'hex')
                  join responses r on r.tenant_id = $1 and r.id = t.response_id and r.status = 'completed'
                                  and r.previous_response_id is null
                 where a.canary_id = $2
                   and not exists (select from canary_votes v where v.canary_id = $2 and v.unit = a.unit
                                                                 and v.measure = 'graded')
                 order by unit, r.created_at
            ), numbered as (
                select *, row_number() over (partition by treated order by created_at desc) as newest from found
            )
            select encode(unit, 'hex') as unit, id, input, body from numbered
             where newest <= greatest(1, $4 / 2) order by unit
            """,
            *(canary.id, canary.name, limit),
        )
        return [(row["unit"], Answered(row["id"], row["input"], row["body"])) for row in rows]


def _canary(row: asyncpg.Record) -> Canary:
    values: dict[str, Any] = dict(row)
    return Canary(**{**values, "state": State(values["state"])})
