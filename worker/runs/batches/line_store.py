"""The lines of batches in Postgres, from the input of a batch until its output is written.

A line is answered by one slot of one worker at a time, and has one answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from migrations.pool import Database
from worker.runs.batches.batch_store import BatchClaim
from worker.runs.presence import BATCH
from worker.runs.running_store import CHANNEL
from worker.wire.batches import Answer, Endpoint

# Answers in memory while an output is written. The largest is that of embeddings: 2,048 vectors are 16 MB.
READ_LINES = 4


class NewLine(NamedTuple):
    number: int
    custom_id: str
    request: bytes  # JSON


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A line that a slot of this worker answers."""

    tenant_id: UUID
    batch_id: str
    number: int
    worker: int
    place: int
    custom_id: str
    endpoint: Endpoint
    request: bytes  # JSON
    attempts: int  # including this one
    caller: Mapping[str, str]

    @property
    def held(self) -> tuple[UUID, str, int, int, int]:
        return self.tenant_id, self.batch_id, self.number, self.worker, self.place


class KeptLine(NamedTuple):
    number: int
    custom_id: str
    answer: bytes | None


class LineStore:
    """Every method sees the rows of one tenant only, except the claim of a line, which covers all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def clear(self, claim: BatchClaim) -> None:
        """Delete the lines of a batch whose input is read, perhaps again."""
        async with self._database.tenant(claim.tenant_id) as connection:
            await connection.execute(
                "delete from batch_lines where tenant_id = $1 and batch_id = $2", claim.tenant_id, claim.batch_id
            )

    async def add(self, claim: BatchClaim, lines: Sequence[NewLine]) -> None:
        """Add lines of a batch whose input is being read, all or none; idempotent."""
        numbers, custom_ids, requests = zip(*lines, strict=True)
        async with self._database.tenant(claim.tenant_id) as connection:
            await connection.execute(
                """insert into batch_lines (tenant_id, batch_id, number, custom_id, request)
                   select $1, $2, number, custom_id, request
                     from unnest($3::integer[], $4::text[], $5::bytea[]) as l (number, custom_id, request)
                   on conflict do nothing""",
                *(claim.tenant_id, claim.batch_id, numbers, custom_ids, requests),
            )

    async def claim(self, worker: int, place: int) -> Line | None:
        """The next line to answer, of any tenant; None when there is none."""
        async with self._database.anonymous() as connection:
            row = await connection.fetchrow("select * from claim_batch_line($1, $2)", worker, place)
        if row is None:
            return None
        tenant_id, batch_id, number = row
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(
                """select l.custom_id, b.endpoint, l.request, l.attempts, b.caller
                     from batch_lines l join batches b on b.tenant_id = l.tenant_id and b.id = l.batch_id
                    where l.tenant_id = $1 and l.batch_id = $2 and l.number = $3 and l.worker = $4 and l.place = $5""",
                *(tenant_id, batch_id, number, worker, place),
            )
        return Line(tenant_id, batch_id, number, worker, place, **row) if row else None

    async def give_back(self, line: Line) -> None:
        """Release an unanswered line through no fault of its own: the attempt does not count, any worker may
        retry it.
        """
        async with self._database.tenant(line.tenant_id) as connection:
            await connection.execute(
                """update batch_lines set worker = null, place = null, attempts = greatest(attempts - 1, 0)
                    where tenant_id = $1 and batch_id = $2 and number = $3 and worker = $4 and place = $5""",
                *line.held,
            )

    async def answer(self, line: Line, answer: Answer) -> None:
        """Store its answer and count it, once. No effect if its batch takes no more answers, or another worker has
        claimed it.
        """
        async with self._database.tenant(line.tenant_id) as connection:
            takes = await connection.fetchval(
                "select status = 'in_progress' from batches where tenant_id = $1 and id = $2 for update",
                *(line.tenant_id, line.batch_id),
            )
            if not takes or not await connection.fetchval(
                """update batch_lines set answer = $6, succeeded = $7, request = '', worker = null, place = null
                    where tenant_id = $1 and batch_id = $2 and number = $3 and worker = $4 and place = $5
                returning true""",
                *(*line.held, answer.line, answer.succeeded),
            ):
                return
            answered = await connection.fetchval(
                """update batches
                      set completed = completed + $3, failed = failed + $4, input_tokens = input_tokens + $5,
                          cached_tokens = cached_tokens + $6, output_tokens = output_tokens + $7,
                          reasoning_tokens = reasoning_tokens + $8
                    where tenant_id = $1 and id = $2
                returning completed + failed = total""",
                *(line.tenant_id, line.batch_id, int(answer.succeeded), int(not answer.succeeded), *answer.tokens),
            )
            if answered:
                await connection.execute("select pg_notify($1, $2)", CHANNEL, BATCH)

    async def kept(self, claim: BatchClaim, *, succeeded: bool) -> AsyncIterator[KeptLine]:
        """The lines with answers of this kind, in order; lines without an answer do not count as successful."""
        last = 0
        while True:
            async with self._database.tenant(claim.tenant_id) as connection:
                rows = await connection.fetch(
                    """select number, custom_id, answer from batch_lines
                        where tenant_id = $1 and batch_id = $2 and number > $3 and coalesce(succeeded, false) = $4
                        order by number limit $5""",
                    *(claim.tenant_id, claim.batch_id, last, succeeded, READ_LINES),
                )
            for row in rows:
                yield KeptLine(*row)
            if len(rows) < READ_LINES:
                return
            last = rows[-1]["number"]
