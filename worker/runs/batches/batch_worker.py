"""Processes the batches of all tenants: checks their input, has their lines answered, and writes their output.

All state is in Postgres, claimed by the worker that processes it, and claimed again if that worker dies. A worker
answers few lines at once, in the engine's lowest priority class.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, TypeAlias, TypeVar, cast

import orjson
from aiohttp import web

from agents.errors import NotFound
from inference.errors import UnknownEmbedder
from inference.trace import Trace, random_id
from migrations.pool import DATABASE_AWAY, certain
from retrieval.errors import FileNotFound
from worker.auth.principal import Principal, Via
from worker.edge.body import MEMORY_BYTES_MAX
from worker.errors import BUSY, ApiError
from worker.http.error_mapping import explained
from worker.lifecycle.process import TimeSlice
from worker.lifecycle.supervisor import Healthy, Supervised, at_most
from worker.runs.batches.batch_store import BatchClaim, Line, LineStore, NewLine
from worker.runs.presence import BATCH, CANCEL
from worker.services import Services
from worker.wire.batches import (
    OUTPUT_PURPOSE,
    WORDS,
    Answer,
    Batch,
    Endpoint,
    LineError,
    Unanswered,
    answered,
    read_line,
    unanswered,
)
from worker.wire.limits import LEVELS_MAX

LINES_MAX = 50_000  # the limit of the public contract
ERRORS_MAX = 100  # that are reported; with more, the program that wrote the file is broken
BOM = b"\xef\xbb\xbf"


async def lines_of(pieces: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[bytes | None]:
    """The lines of a file that arrives in chunks; None stands for a line of more than `bytes_max` bytes."""
    rest, too_long = b"", False
    async for piece in pieces:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            line = rest + piece[start:end]
            yield None if too_long or len(line) > bytes_max else line
            rest, too_long, start = b"", False, end + 1
        if not too_long:
            rest += piece[start:]
            if len(rest) > bytes_max:
                rest, too_long = b"", True
    if rest or too_long:
        yield None if too_long else rest


@dataclass(slots=True)
class Checked:
    """What was read of a file so far. `model_error` says what is wrong with a line's model, if anything."""

    endpoint: str
    bytes_max: int
    model_error: Callable[[str | None], str | None]
    count: int = 0  # of lines that are not blank
    is_hopeless: bool = False  # further reading reveals nothing new
    errors: list[LineError] = field(default_factory=list)
    models: set[str | None] = field(default_factory=set)
    _custom_ids: set[str] = field(default_factory=set)

    @property
    def model(self) -> str | None:
        """The model that all lines name."""
        return next(iter(self.models)) if len(self.models) == 1 else None

    def take(self, number: int, raw: bytes | None) -> NewLine | None:
        """The line, unless it is blank or has an error, which is recorded."""
        if number > LINES_MAX:
            self.errors.append(LineError("too_many_lines", f"The file has more than {LINES_MAX} lines."))
            self.is_hopeless = True
            return None
        if raw is not None and not raw.removeprefix(BOM).strip():
            return None
        self.count += 1
        read = self._read(number, raw)
        if isinstance(read, LineError):
            self.errors.append(read._replace(line=number))
            self.is_hopeless = len(self.errors) >= ERRORS_MAX
            return None
        return read

    def _read(self, number: int, raw: bytes | None) -> NewLine | LineError:
        if raw is None:
            return LineError("line_too_long", f"The line is longer than {self.bytes_max} bytes.")
        line = read_line(raw.removeprefix(BOM) if number == 1 else raw, self.endpoint)
        if isinstance(line, LineError):
            return line
        if line.custom_id in self._custom_ids:
            message = "Another line has this custom_id: it must be unique in the file."
            return LineError("duplicate_custom_id", message, "custom_id")
        self._custom_ids.add(line.custom_id)
        model = line.body.get("model")
        if model is None or isinstance(model, str):  # everything else is reported by the line's own answer
            if model not in self.models and (wrong := self.model_error(model)):
                return LineError("model_not_found", wrong, "body.model")
            self.models.add(model)
        try:
            return NewLine(number, line.custom_id, orjson.dumps(line.body))
        except orjson.JSONEncodeError:  # it reads more levels than it writes
            return LineError("invalid_value", f"Invalid 'body': it nests more than {LEVELS_MAX} levels deep.", "body")

    def close(self) -> None:
        if not self.count and not self.errors:
            self.errors.append(LineError("empty_file", "The file has no lines."))


log = logging.getLogger("firsttoken.batches")

POLL_S = 5.0  # expired batches, or those of a dead worker, are noticed within this time
ATTEMPTS_MAX = 5  # for a line or an input: workers die for other reasons too, but not every time
LINE_S_MAX = 2 * 3600.0  # for one line including its wait: then the line fails, and the rest of the batch continues
RETRY_S = 1.0  # until a full worker or an unavailable database is tried again
BUSY_S_MAX = 600.0  # a problem that lasts this long is permanent, and other lines wait for the slot
STORE_S = 5.0
GIVE_BACK_S = 1.0  # for the database update when the worker stops
ADD_BYTES = 2**20  # of requests that are stored in one statement
ADD_LINES = 500


# Returns the body of the answer to a line. Raises if the request is refused or fails.
AnswerBody: TypeAlias = Callable[[Services, Principal, Endpoint, bytes, Trace, TimeSlice], Awaitable[dict[str, Any]]]

T = TypeVar("T")


class BatchWorker:
    """`places`: number of lines answered concurrently; with 0, batches are left to other workers altogether."""

    def __init__(self, services: Services, places: int, answer_body: AnswerBody) -> None:
        self._services = services
        self._answer_body = answer_body
        self._lines = LineStore(services.database)
        self._worker = services.presence.worker
        self._arrived = [asyncio.Event() for _ in range(places + 1)] if places else []  # the last: for whole batches
        self._making: dict[Line, asyncio.Task[Answer]] = {}
        self._tasks: list[Supervised] = []

    def start(self) -> None:
        """Call this before the worker subscribes to notifications."""
        presence, supervisor = self._services.presence, self._services.supervisor
        presence.on[CANCEL].append(self._stop_lines)
        presence.on[BATCH].append(self._look)
        for place, arrived in enumerate(self._arrived[:-1]):
            claim = partial(self._lines.claim, self._worker, place)
            work = partial(self._keep_working, arrived, claim, self._lines.give_back, self._take)
            self._tasks.append(supervisor.start("batches", work))
        if self._arrived:
            batches = self._services.batches
            claim_batch = partial(batches.claim, self._worker)
            steer = partial(self._keep_working, self._arrived[-1], claim_batch, batches.leave, self._steer)
            self._tasks.append(supervisor.start("batches", steer))

    async def stop(self) -> None:
        """Claim nothing more, and release unfinished work, which another worker restarts. Idempotent."""
        await asyncio.gather(*(task.stop() for task in self._tasks))

    def _look(self, _: str = "") -> None:
        """There may be something to claim."""
        for arrived in self._arrived:
            arrived.set()

    def _stop_lines(self, batch_id: str) -> None:
        """Their batch has ended, or is about to."""
        for line, task in self._making.items():
            if line.batch_id == batch_id:
                task.cancel()

    async def _keep_working(
        self,
        arrived: asyncio.Event,
        claim: Callable[[], Awaitable[T | None]],
        give_back: Callable[[T], Awaitable[None]],
        work: Callable[[T], Awaitable[None]],
        healthy: Healthy,
    ) -> None:
        while True:
            arrived.clear()
            while self._services.presence.is_alive and (claimed := await self._claimed(claim(), give_back)):
                await work(claimed)
                healthy()
            healthy()
            async with at_most(POLL_S):
                await arrived.wait()

    # Lines

    async def _take(self, line: Line) -> None:
        task = self._making[line] = asyncio.create_task(self._answer(line), name="line")
        try:
            await asyncio.wait([task])
            if not task.cancelled():  # its batch has ended, or its claim is lost, which the next claim reveals
                await certain(lambda: self._lines.answer(line, task.result()), STORE_S)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            give_back, answer = self._lines.give_back, self._lines.answer
            await self._try(lambda: give_back(line) if task.cancelled() else answer(line, task.result()))
            raise
        finally:
            del self._making[line]

    async def _answer(self, line: Line) -> Answer:
        id = f"batch_req_{random_id(128)}"
        if line.attempts > ATTEMPTS_MAX:
            message = f"The request was started {ATTEMPTS_MAX} times, and each time the worker stopped before the end."
            return unanswered(id, line.custom_id, "server_error", message)
        limit = asyncio.timeout(LINE_S_MAX)
        try:
            async with limit:
                return await self._answered(line, id)
        except TimeoutError:
            message = f"The request was not answered within {LINE_S_MAX / 3600:.0f} hours of its beginning."
            return unanswered(id, line.custom_id, "request_timeout", message)

    async def _answered(self, line: Line, id: str) -> Answer:
        """The endpoint's answer. For a while, an error that only reports overload is retried instead."""
        request_id, give_up_at = f"req_{random_id(128)}", time.monotonic() + BUSY_S_MAX
        while True:
            try:
                return answered(id, line.custom_id, 200, request_id, await self._body(line, request_id))
            except Exception as error:  # top-level boundary: any error is the answer to its own line, or temporary
                answer = explained(error, log, "line %d of %s", line.number, line.batch_id)
                if answer.status not in BUSY or time.monotonic() >= give_up_at:
                    return answered(id, line.custom_id, answer.status, request_id, answer.body)
                await asyncio.sleep(RETRY_S)

    async def _body(self, line: Line, request_id: str) -> dict[str, Any]:
        """Within the limits of the key, as in an interactive request."""
        authenticator, rates = self._services.authenticator, self._services.rates
        trace = Trace(attributes={"background": True, "request_id": request_id})
        via, subject = cast(Via, line.caller["via"]), line.caller["subject"]
        principal = await authenticator.principal_of(line.tenant_id, via, subject)
        task = asyncio.current_task()
        assert task is not None
        taken = rates.take(principal, time.monotonic())
        try:
            with authenticator.revocable(principal, task.cancel):
                return await self._answer_body(
                    self._services, principal, line.endpoint, line.request, trace, self._time_slice()
                )
        finally:
            rates.give_back(principal, taken, time.monotonic())

    # Whole batches

    async def _steer(self, claim: BatchClaim) -> None:
        """Check the input of a batch, or write its output."""
        batches = self._services.batches
        try:
            batch = await batches.get(claim.tenant_id, claim.batch_id)
            await (self._check(claim, batch) if batch.status == "validating" else self._finish(claim, batch))
        except asyncio.CancelledError:
            await self._try(lambda: batches.leave(claim))
            raise
        except NotFound:
            log.info("%s was deleted, or belongs to another worker", claim.batch_id)
        self._look()

    async def _check(self, claim: BatchClaim, batch: Batch) -> None:
        """Any problem of the input becomes an error of the batch."""
        services, errors = self._services, []
        checked = Checked(batch.endpoint, services.config.body_bytes, partial(self._model_error, batch.endpoint))
        try:
            if batch.attempts > ATTEMPTS_MAX:
                raise ApiError(500, f"The file was read {ATTEMPTS_MAX} times, and each time the worker stopped.")
            await self._read(claim, batch, checked)
            errors = checked.errors
        except FileNotFound:
            errors = [LineError("file_not_found", "The input file was deleted.", "input_file_id")]
        except DATABASE_AWAY:
            raise
        except Exception as error:  # top-level boundary: one odd file must not block the others forever
            if not isinstance(error, ApiError):
                log.exception("reading the input of %s failed", batch.id)
            message = error.message if isinstance(error, ApiError) else "The file could not be read."
            errors = [LineError("server_error", message, "input_file_id")]
        if errors:
            await self._lines.clear(claim)
            await services.batches.refuse(claim, errors)
        else:
            model = checked.model and services.aliases.model_of(checked.model)
            await services.batches.begin(claim, checked.count, model)

    async def _read(self, claim: BatchClaim, batch: Batch, checked: Checked) -> None:
        """Store the lines, as long as there are no errors."""
        uploads, time_slice = self._services.uploads, self._time_slice()
        await uploads.get(claim.tenant_id, batch.input_file_id)
        await self._lines.clear(claim)
        number, lines, held = 0, list[NewLine](), 0
        async for raw in lines_of(uploads.pieces(claim.tenant_id, batch.input_file_id), checked.bytes_max):
            number += 1
            await time_slice.yield_if_due()
            line = checked.take(number, raw)
            if checked.is_hopeless:
                break
            if line is None or checked.errors:
                continue
            lines.append(line)
            held += len(line.request)
            if len(lines) >= ADD_LINES or held >= ADD_BYTES:
                await self._lines.add(claim, lines)
                lines, held = [], 0
        checked.close()
        if lines and not checked.errors:
            await self._lines.add(claim, lines)

    def _model_error(self, endpoint: str, model: str | None) -> str | None:
        """What is wrong with the model that a line names, if anything; a line without one reports that itself."""
        try:
            if endpoint != "/v1/embeddings":
                self._services.checked(model)
            elif model is not None:
                self._services.embedders.dimensions(self._services.aliases.model_of(model))
        except ApiError as error:
            return error.message
        except UnknownEmbedder as error:
            return str(error)
        return None

    async def _finish(self, claim: BatchClaim, batch: Batch) -> None:
        """Write its output, one file at a time: a worker that takes over does not write the finished ones again."""
        store = self._services.batches
        if batch.status == "in_progress":
            await store.finalize(claim)
            batch = await store.get(claim.tenant_id, claim.batch_id)
        if batch.completed and batch.output_file_id is None:
            await self._write(claim, batch, succeeded=True)
        if batch.total > batch.completed and batch.error_file_id is None:
            await self._write(claim, batch, succeeded=False)
        await store.end(claim, batch.end)

    async def _write(self, claim: BatchClaim, batch: Batch, *, succeeded: bool) -> None:
        why: Unanswered = "batch_cancelled" if batch.cancelling_at else "batch_expired"
        name = "output" if succeeded else "error"
        wrote = partial(self._services.batches.wrote, claim, "output_file_id" if succeeded else "error_file_id")
        time_slice = self._time_slice()
        with tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX) as spool:
            content = cast(BinaryIO, spool)
            async for line in self._lines.kept(claim, succeeded=succeeded):
                told = line.answer or unanswered(f"batch_req_{random_id(128)}", line.custom_id, why, WORDS[why]).line
                content.write(told + b"\n")
                await time_slice.yield_if_due()
            size = content.tell()
            content.seek(0)
            await self._services.uploads.create(
                *(claim.tenant_id, f"{batch.id}_{name}.jsonl", OUTPUT_PURPOSE, size, content),
                bounded=False,
                also=wrote,
            )

    # Both

    async def _claimed(self, claim: Awaitable[T | None], give_back: Callable[[T], Awaitable[None]]) -> T | None:
        """What was claimed. A worker that stops meanwhile does not know whether it was: it waits, and gives it back."""
        claiming = asyncio.ensure_future(claim)

        async def undo() -> None:
            if (claimed := await claiming) is not None:
                await give_back(claimed)

        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await self._try(undo)
            raise

    def _time_slice(self) -> TimeSlice:
        return TimeSlice(self._services.chatting)

    async def _try(self, transaction: Callable[[], Awaitable[None]]) -> None:
        with suppress(*DATABASE_AWAY):  # then it counts as an attempt
            async with asyncio.timeout(GIVE_BACK_S):
                await transaction()


BATCHES: web.AppKey[BatchWorker] = web.AppKey("batches", BatchWorker)
