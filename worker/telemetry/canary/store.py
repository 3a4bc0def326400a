"""The tables canaries and canary_answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any
from uuid import UUID

import asyncpg

from agents.store.answered import Answered
from migrations.pool import Database
from worker.auth.audit import Act, Actor, note
from worker.telemetry.canary.trial import Canary, Proposal, State
from worker.telemetry.canary.verdict import Answer, Evidence, Vote

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
        async with self._database.anonymous() as connection:
            rows = await connection.fetch(
                f"select {COLUMNS} from canaries where state in ('running', 'promoted') order by started_at"
            )
        return [_canary(row) for row in rows]

    async def all(self) -> list[Canary]:
        """Newest first."""
        async with self._database.anonymous() as connection:
            rows = await connection.fetch(f"select {COLUMNS} from canaries order by started_at desc limit 100")
        return [_canary(row) for row in rows]

    async def named(self, name: str) -> Canary | None:
        async with self._database.anonymous() as connection:
            row = await connection.fetchrow(f"select {COLUMNS} from canaries where name = $1", name)
        return _canary(row) if row else None

    async def add(self, answers: Iterable[tuple[UUID, str, Answer]]) -> None:
        """Each with the canary's id and the digest of its conversation, whose first answer counts."""
        rows = [{"canary_id": str(canary_id), "unit": unit, **asdict(answer)} for canary_id, unit, answer in answers]
        async with self._database.anonymous() as connection:
            await connection.execute(
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
        async with self._database.anonymous() as connection:
            await connection.execute(
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
        async with self._database.anonymous() as connection:
            answers = await connection.fetch(
                "select treated, failed, late, ttft_ms, tpot_ms, tokens, declined, cost from canary_answers "
                "where canary_id = $1 order by position limit $2",
                *(canary.id, ANSWERS_MAX),
            )
            votes = await connection.fetch(
                "select treated, measure, harm from canary_votes where canary_id = $1 order by position", canary.id
            )
        return Evidence([Answer(*row) for row in answers], [Vote(*row) for row in votes])

    async def ungraded(self, tenant_id: UUID, canary: Canary, limit: int) -> list[tuple[str, Answered]]:
        """Stored answers of one tenant that are part of a canary and not graded yet: the newest, the same number of
        both arms, in an order that does not reveal the arm."""
        async with self._database.tenant(tenant_id) as connection:
            rows = await connection.fetch(
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
                *(tenant_id, canary.id, canary.name, limit),
            )
        return [(row["unit"], Answered(row["id"], row["input"], row["body"])) for row in rows]


def _canary(row: asyncpg.Record) -> Canary:
    values: dict[str, Any] = dict(row)
    return Canary(**{**values, "state": State(values["state"])})
