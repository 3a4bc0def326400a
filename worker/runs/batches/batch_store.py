"""Batches in Postgres: as their tenants see them, and their state transitions by the worker that processes them. And
their lines, from the input of a batch until its output is written: a line is answered by one slot of one worker at a
time, and has one answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from uuid import UUID

from agents.errors import NotFound
from agents.message import new_id
from migrations.pool import Connection, Database
from worker.errors import rate_limited
from worker.runs.presence import BATCH, CANCEL
from worker.runs.running_store import CHANNEL
from worker.wire.batches import Answer, Batch, BatchCreate, Endpoint, LineError, Status

if TYPE_CHECKING:
    import asyncpg

TENANT_BATCHES_MAX = 8  # in progress: with files of the usual limit, half a gigabyte of requests
RETRY_AFTER_S = 60.0  # a batch takes minutes
OutputColumn: TypeAlias = Literal["output_file_id", "error_file_id"]
_COLUMNS = ", ".join(each.name for each in fields(Batch))
# Answers in memory while an output is written. The largest is that of embeddings: 2,048 vectors are 16 MB.
READ_LINES = 4


class BatchClaim(NamedTuple):
    """A batch claimed by a worker, which checks its input or writes its output."""

    tenant_id: UUID
    batch_id: str
    worker: int


class BatchStore:
    """Every method sees the rows of `tenant_id` only, except `claim`, which is the worker's own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, tenant_id: UUID, body: BatchCreate, caller: Mapping[str, str]) -> Batch:
        """Raises ApiError 429 when the tenant has too many in progress.

        Concurrent requests may exceed the limit together, by at most the number of connections.
        """
        async with self._database.tenant(tenant_id) as connection:
            open_batches = await connection.fetchval(
                "select count(*) from batches where tenant_id = $1 and status in "
                "('validating', 'in_progress', 'finalizing', 'cancelling')",
                tenant_id,
            )
            if open_batches >= TENANT_BATCHES_MAX:
                message = f"{open_batches} of your batches are in progress, which is the limit. Try again later."
                raise rate_limited(message, RETRY_AFTER_S)
            row = await connection.fetchrow(
                f"""insert into batches (tenant_id, id, endpoint, input_file_id, completion_window, metadata, caller,
                                         expires_at)
                    values ($1, $2, $3, $4, $5, $6, $7, now() + $8) returning {_COLUMNS}""",
                *(tenant_id, new_id("batch"), body.endpoint, body.input_file_id, body.completion_window),
                *(body.metadata, dict(caller), body.window),
            )
            await connection.execute("select pg_notify($1, $2)", CHANNEL, BATCH)
        assert row is not None
        return Batch(**row)

    async def get(self, tenant_id: UUID, batch_id: str) -> Batch:
        """Raises NotFound."""
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(
                f"select {_COLUMNS} from batches where tenant_id = $1 and id = $2", tenant_id, batch_id
            )
        return _found(row, batch_id)

    async def list(self, tenant_id: UUID, *, after: str | None, limit: int) -> list[Batch]:
        """Batches after this one, newest first."""
        async with self._database.tenant(tenant_id) as connection:
            rows = await connection.fetch(
                f"""select {_COLUMNS} from batches
                     where tenant_id = $1
                       and ($2::text is null or (created_at, id) < (
                               select created_at, id from batches a where a.tenant_id = $1 and a.id = $2))
                     order by created_at desc, id desc limit $3""",
                *(tenant_id, after, limit),
            )
        return [Batch(**row) for row in rows]

    async def cancel(self, tenant_id: UUID, batch_id: str) -> Batch:
        """The batch as it is now: being cancelled, unless it had already ended. Raises NotFound."""
        async with self._database.tenant(tenant_id) as connection:
            row = await connection.fetchrow(
                f"""update batches set status = 'cancelling', cancelling_at = now()
                     where tenant_id = $1 and id = $2 and status in ('validating', 'in_progress')
                 returning {_COLUMNS}""",
                *(tenant_id, batch_id),
            )
            if row is not None:
                await _stop_lines(connection, batch_id)
        return Batch(**row) if row else await self.get(tenant_id, batch_id)

    async def claim(self, worker: int) -> BatchClaim | None:
        """A batch to check or to finish, of any tenant; None when there is none."""
        rows = await self._database.fetch("select tenant_id, id from claim_batch($1)", worker)
        return BatchClaim(rows[0]["tenant_id"], rows[0]["id"], worker) if rows else None

    async def begin(self, claim: BatchClaim, lines: int, model: str | None) -> None:
        """The input is valid: its lines may be answered. No effect if it was cancelled meanwhile."""
        await self._change(
            claim,
            "status = 'in_progress', in_progress_at = now(), total = $4, model = $5, worker = null "
            "where status = 'validating'",
            *(lines, model),
        )
        await self._database.fetch("select pg_notify($1, $2)", CHANNEL, BATCH)

    async def refuse(self, claim: BatchClaim, errors: Sequence[LineError]) -> None:
        """The input has errors: none of its lines is answered. No effect if it was cancelled meanwhile."""
        await self._change(
            claim,
            "status = 'failed', failed_at = now(), errors = $4, worker = null where status = 'validating'",
            [error._asdict() for error in errors],
        )

    async def finalize(self, claim: BatchClaim) -> None:
        """No more lines are started; those in progress are ended."""
        async with self._database.tenant(claim.tenant_id) as connection:
            await connection.execute(
                "update batches set status = 'finalizing', finalizing_at = now() "
                "where tenant_id = $1 and id = $2 and worker = $3 and status = 'in_progress'",
                *claim,
            )
            await _stop_lines(connection, claim.batch_id)

    async def wrote(self, claim: BatchClaim, column: OutputColumn, connection: Connection, file_id: str) -> None:
        """Record where the output is, in the transaction that stores it. Raises NotFound, which rolls both back, if
        another worker has claimed the batch."""
        if not await connection.fetchval(
            f"update batches set {column} = $4 where tenant_id = $1 and id = $2 and worker = $3 returning true",
            *(*claim, file_id),
        ):
            raise NotFound("batch", claim.batch_id)

    async def end(self, claim: BatchClaim, status: Status) -> None:
        """Its output is written: delete its lines."""
        async with self._database.tenant(claim.tenant_id) as connection:
            ended = await connection.fetchval(
                f"update batches set status = $4, {status}_at = now(), worker = null "
                "where tenant_id = $1 and id = $2 and worker = $3 returning true",
                *(*claim, status),
            )
            if ended:
                await connection.execute(
                    "delete from batch_lines where tenant_id = $1 and batch_id = $2", claim.tenant_id, claim.batch_id
                )

    async def leave(self, claim: BatchClaim) -> None:
        """Release the claim, so that any worker may continue."""
        await self._change(claim, "worker = null, attempts = greatest(attempts - 1, 0) where true")

    async def _change(self, claim: BatchClaim, change: str, *values: Any) -> None:
        async with self._database.tenant(claim.tenant_id) as connection:
            await connection.execute(
                f"update batches set {change} and tenant_id = $1 and id = $2 and worker = $3", *claim, *values
            )


async def _stop_lines(connection: Connection, batch_id: str) -> None:
    """Notify the workers that the lines of a batch need no answers any more, and that a batch is ready to be
    processed.
    """
    await connection.execute("select pg_notify($1, $2)", CHANNEL, f"{CANCEL} {batch_id}")
    await connection.execute("select pg_notify($1, $2)", CHANNEL, BATCH)


def _found(row: asyncpg.Record | None, batch_id: str) -> Batch:
    if row is None:
        raise NotFound("batch", batch_id)
    return Batch(**row)


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
