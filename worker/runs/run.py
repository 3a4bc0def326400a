"""One response while this worker generates it: it runs for as long as a client reads it, or as its disconnect policy
says. Clients read it from memory, and the responses of other workers from the store.

A background response is stored before it starts, and can be restarted until one of its events is sent. From then on,
and where its client intends to reconnect, another worker resumes it if this one is lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

from agents.errors import STOPPED, NotFound, TurnOver
from agents.events import TurnFinished, Usage
from agents.message import FunctionCall, Item, answered_calls, new_id
from agents.progress import Marks
from agents.store import ResponseRecord
from agents.turn import AnswerNow, Steering, Turn
from inference.frozen import changed
from migrations.pool import DATABASE_AWAY, certain
from worker.errors import BROKE, ApiError
from worker.http.error_mapping import refusal, to_api_error
from worker.lifecycle.supervisor import at_most
from worker.runs.broadcast import Broadcast, Reader
from worker.runs.cache_diagnostics import diagnosed
from worker.runs.continuation import Batch, Continuation, InterruptedResponse, ResponseEnd, completed_items
from worker.runs.disconnect import Readers
from worker.runs.event_log import EventLog
from worker.runs.event_stream import Stream
from worker.runs.ledger import Ledger
from worker.runs.presence import FOLLOW, FOLLOWED_S
from worker.runs.run_services import RunServices
from worker.runs.steering_store import SUCCESSOR, SaidMeanwhile, Successor, check_said
from worker.runs.turn import ResponseTurn, begin, finish, learn_turns, record_of, run_turn, settle, withdraw
from worker.wire.events import WireEvent, encode

log = logging.getLogger("firsttoken.runs")

ABANDON_S = 5.0  # how long storing a partial response may take once it was stopped
BEGIN_S = 2.0  # how long a request waits until its row is known to be stored; then it is refused
END_S = 15.0  # how long the terminal event waits for the database: enough for a restart
POLL_S = 2.0


class RunCancelled(ApiError):
    """A response was stopped before it was accepted."""

    def __init__(self) -> None:
        super().__init__(409, "The response was cancelled.", code="response_cancelled")


class Stop(Enum):
    """What a run does in place of going on."""

    CANCELLED = "keeps its output so far"
    ABORTED = "fails, with its output so far"
    LEFT = "is left to another worker"
    ENDED = "stores its end"


class Run:
    """`broadcast` tells its events to clients and to the journal; `readers` says how long it goes on without a client.
    `snapshot` is the final response, and `error` what kept it from being stored.
    """

    def __init__(
        self,
        turn: ResponseTurn,
        ledger: Ledger,
        event_log: EventLog,
        *,
        sent_before: Sequence[WireEvent] = (),
        job: dict[str, Any] | None = None,
        interrupted: InterruptedResponse | None = None,
        promised: bool = False,
    ) -> None:
        """`sent_before` are its events that were sent before it was here. `job` is what another worker needs to resume
        it, if one may. `interrupted`: this worker resumes it. `promised`: its client knows of it before it begins, as
        of one in the background."""
        self.turn = turn
        settles = turn.frame.request.background is True and interrupted is None
        self.broadcast = Broadcast(
            turn,
            ledger.trace,
            event_log,
            sent_before,
            resumed=interrupted is not None,
            settle=partial(settle, ledger.services, turn) if settles else None,
        )
        self.write, self.drain = self.broadcast.write, self.broadcast.drain  # it is the sink of its turn
        self.broadcast.journal.on_lost = self._on_lost
        self.readers = Readers(self.cancel)
        self.snapshot: dict[str, Any] = turn.frame.started()
        self.error: Exception | None = None
        self.answer_now = AnswerNow()
        self.steering = Steering()
        self.successor: Successor | None = None  # goes on with what was said to it, once it has ended
        self.next: asyncio.Future[Run | ApiError] | None = None  # of its successor, once it has ended
        self.on_successor: Callable[[Successor], None] = lambda _: None
        self._services = ledger.services
        self._ledger = ledger
        self._job, self._interrupted = job, interrupted
        self._promised = promised or self.in_background
        self._held = ExitStack()
        self._executes = self._began = False
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._diagnosis: dict[str, Any] | None = None  # why its prompt was not cached, if the request asks for it
        self._stop: Stop | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    @property
    def id(self) -> str:
        return self.turn.frame.id

    @property
    def output(self) -> tuple[Item, ...]:
        """The items so far."""
        return self.broadcast.output

    @property
    def in_background(self) -> bool:
        return self.turn.frame.request.background is True

    @property
    def was_known(self) -> bool:
        """Whether clients could know its id before it was here."""
        return self._promised or self._interrupted is not None

    @property
    def is_resumable(self) -> bool:
        """Whether another worker resumes it if this one is lost."""
        return self._job is not None

    @property
    def can_move(self) -> bool:
        """Whether another worker restarts it, or resumes it behind what was sent, once this one has left it."""
        return self.broadcast.is_held_back or self.broadcast.journal.continuation is not None

    @property
    def open_calls(self) -> list[FunctionCall]:
        """The calls with which it has ended, for the caller to run or approve: those of tools have their results."""
        calls, known = [item for item in self.output if isinstance(item, FunctionCall)], answered_calls(self.output)
        return [call for call in calls if call.runs and call.call_id not in known]

    @property
    def accepted(self) -> bool:
        return self._accepted.done() and not self._accepted.cancelled() and self._accepted.exception() is None

    @property
    def left(self) -> bool:
        """Whether it stopped without a terminal event: another worker continues it, or already owns it."""
        return self._stop is Stop.LEFT and self.ended

    @property
    def is_ending(self) -> bool:
        """Whether its end is being stored, or was."""
        return self._stop is not None

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    async def start(self, held: ExitStack) -> None:
        """Return when the turn was accepted; raises what refuses it, and RunCancelled. `held` is closed when the
        response has ended."""
        self._held = held
        self._task = asyncio.create_task(self._execute(), name="run")
        self._task.add_done_callback(self._release)
        try:
            await asyncio.shield(self._accepted)
        except asyncio.CancelledError:
            if self.accepted:  # its client left at that moment, and may come back
                self.readers.expect()
            elif self.was_known:  # what starts it stops with this worker
                self.leave()
            else:
                self.cancel()
            raise

    def cancel(self) -> None:
        """Stop at the next await, or at the first line, and keep the output so far. Idempotent."""
        self._stop_as(Stop.CANCELLED)

    def abort(self) -> None:
        """This worker stops: end as failed, with the output so far. Its client did not cancel it."""
        self._stop_as(Stop.ABORTED)

    def leave(self) -> None:
        """Stop without a terminal event, as if this worker had died: another one restarts it, or marks it as failed.
        Too late for one whose end is being stored."""
        self._stop_as(Stop.LEFT)

    def _stop_as(self, stop: Stop) -> None:
        if self._task and self._stop is None and not self.ended:
            self._stop = stop
            if self._executes:
                self._task.cancel()

    def _release(self, _task: asyncio.Task[None]) -> None:
        self._over.set()
        self.readers.close()
        self._held.close()
        if not self._accepted.done():
            self._refuse(RunCancelled())

    def _refuse(self, error: Exception) -> None:
        self._accepted.set_exception(error)
        self._accepted.exception()  # it counts as seen: its client may have left before

    def say(self, said: tuple[Item, ...]) -> str:
        """Keep what is said to a response that is not stored; returns the id of its successor. Raises TurnOver,
        TooMuchSaid."""
        if self._stop is not None:
            raise TurnOver(self.id)
        before = self.successor or Successor(new_id("resp"), ())
        self.successor = replace(before, said=check_said((*before.said, *said)))
        return before.id

    def steer(self, steer_id: str | None, *, stop_tools: bool) -> bool:
        """Its successor waits: end at the next safe place. Returns whether its readers are told."""
        told = steer_id is not None and self._stop is None and not self.broadcast.is_held_back
        if told:
            self.broadcast.steered(steer_id or "")
        self.steering.ask(stop_tools=stop_tools)
        return told

    async def wait(self) -> None:
        """Return when the response has ended, in whatever way."""
        await self._over.wait()

    async def read(self, stream: Stream, number: int = 0) -> int:
        """Send the frames from this number on until the response has ended; returns the number of the next frame.
        Raises ClientGone."""
        reader = Reader(self.broadcast, stream, number)
        with self.readers.reading():
            await stream.open()
            stream.on_room.append(reader.push)
            try:
                with self.broadcast.followed_by(reader):
                    await self.wait()
                    while reader.sent < self.broadcast.sendable:
                        await stream.room()
            finally:
                stream.on_room.remove(reader.push)
        return reader.sent

    async def open(self) -> None:
        """Store that the response has begun, before any event is sent. Meanwhile the engine prefills the prompt."""
        if self._interrupted is None:
            self._began = True
            await certain(lambda: begin(self._services, self.turn, self.broadcast.journal.begun), BEGIN_S)
        self._accepted.set_result(None)

    async def _until_settled(self) -> None:
        """Return when no other worker can restart the response: calls of MCP servers must not run twice."""
        if self.broadcast.is_held_back:
            await certain(lambda: settle(self._services, self.turn), BEGIN_S)
            self.broadcast.release()

    def _on_lost(self) -> None:
        if self.broadcast.journal.continuation is not None:
            self.leave()

    async def _execute(self) -> None:
        status, self._executes = "refused", True
        try:
            if self._stop is not None:
                raise asyncio.CancelledError
            finished = await self._run_turn()
            status = "failed"  # unless its end can be stored
            status = await self._conclude(finished)
        except asyncio.CancelledError:
            status = "cancelled"
            if not self._accepted.done():
                await self._withdraw()
            if self._stop is Stop.ABORTED and self.accepted:
                status = await self._conclude(self._stopped())
            elif self._stop not in (Stop.ABORTED, Stop.LEFT):
                await self._store_partial()
        except Exception as error:
            if self._accepted.done():
                raise
            status = refusal(error)
            await self._withdraw()
            self._refuse(error)
        finally:
            self.broadcast.close()
            self._held.close()
            self._ledger.record(status)
            if self.successor is not None and self._stop is not Stop.LEFT:
                self.on_successor(self.successor)
        if self.error is not None:
            await self.broadcast.flush(ABANDON_S)

    async def _withdraw(self) -> None:
        """No event was sent, but the row may be stored: the answer of the database was lost."""
        if not self._began or self._promised:
            return
        try:
            async with asyncio.timeout(ABANDON_S):
                await withdraw(self._services, self.turn)
        except DATABASE_AWAY as error:
            log.warning("a refused response could not be deleted, leaving it for later: %r", error)

    async def _run_turn(self) -> TurnFinished:
        """Errors before the turn is accepted refuse the request."""
        try:
            turn, trace = self._ledger.applied(self.turn.turn), self._ledger.trace
            turn = changed(turn, answer_now=self.answer_now, steering=self.steering)
            marks = self._marks_of(turn)
            if self._interrupted is not None:
                turn, marks = replace(turn, reports_position=False), marks or Marks(self.broadcast.until_stored)
                return await self._services.agent.resume(
                    turn, trace, self, self._interrupted.checkpoint, marks, self.broadcast.replay
                )
            await learn_turns(self._services, turn)
            finished = await run_turn(self._services, turn, trace, self, marks)
            if (other_id := self.turn.frame.request.compared_id) is not None:
                self._diagnosis = await diagnosed(self._services, self.turn, trace, other_id)
            return finished
        except Exception:  # the boundary: an accepted turn always ends with a terminal event
            if not self._accepted.done():
                raise
            log.exception("a turn failed unexpectedly")
            return TurnFinished("failed", (), Usage(), error_code="server_error", error_message=BROKE)

    def _marks_of(self, turn: Turn) -> Marks | None:
        """What is stored of the turn so that another worker resumes it, or repeats no call of its MCP servers."""
        if turn.servers:
            return Marks(self._until_settled) if self.in_background else None
        if (
            self._job is None
            or turn.compacting is not None
            or turn.sampling.top_logprobs is not None
            or turn.only_reads
        ):
            return None
        broadcast, marks = self.broadcast, Marks(self.broadcast.until_stored)
        broadcast.journal.continuation = Continuation(self._job, marks, lambda: not broadcast.is_held_back)
        return marks

    async def _conclude(self, finished: TurnFinished) -> str:
        """Store the end before it is sent, so that what was acknowledged survives. If that fails, the response
        fails. Nothing is awaited between its end and its record: a client that has read the one finds the other."""
        self._stop = self._stop or Stop.ENDED  # too late to cancel: two ends would be stored
        await self.broadcast.settled()
        with self._ledger.trace.span("flush"):
            snapshot = self.turn.snapshot(finished)
            if self._diagnosis is not None:
                snapshot["prompt_cache_diagnostics"] = self._diagnosis
            try:
                events = await self._store_end(snapshot, finished, lambda: self.broadcast.end(snapshot), END_S)
            except Exception as error:  # the boundary: events were sent, so the last one must say what happened
                is_elsewhere = isinstance(error, NotFound) and error.kind == "response"
                if is_elsewhere and self.broadcast.journal.continuation is not None:
                    self._stop = Stop.LEFT
                    return "cancelled"
                _log_unstored(error)
                finished, snapshot = self._failed(finished, error)
            else:
                self.broadcast.journal.keep(events)  # all but the trace, which precedes the end
        self.snapshot = snapshot
        self.broadcast.send_end(partial(self._ledger.payload, finished.status))
        return finished.status

    async def _store_end(
        self, snapshot: dict[str, Any], finished: TurnFinished, batch: Callable[[], Batch], give_up_s: float
    ) -> Batch:
        """Returns the events that are stored. Adds the successor to the snapshot, if something was said: up to now."""
        if self.successor is not None:
            snapshot[SUCCESSOR] = self.successor.id
        record = changed(record_of(self.turn, snapshot, finished.output), remembered=finished.remembered)
        events = batch()
        try:
            await certain(lambda: self._finish(record, events), give_up_s)
        except SaidMeanwhile as said:
            snapshot[SUCCESSOR] = said.successor_id
            return await self._store_end(snapshot, finished, batch, give_up_s)
        return events

    async def _finish(self, record: ResponseRecord, events: Batch) -> None:
        """Idempotent: its successor is taken once."""
        self.successor = await finish(self._services, self.turn, record, events) or self.successor

    def _stopped(self) -> TurnFinished:
        half = completed_items(self.output)
        return TurnFinished("failed", half, Usage(), error_code="server_error", error_message=STOPPED)

    def _failed(self, finished: TurnFinished, error: Exception) -> tuple[TurnFinished, dict[str, Any]]:
        """The response as failed."""
        self.error = error
        answer = to_api_error(error)
        message = answer.message if answer else BROKE
        finished = replace(finished, status="failed", error_code="server_error", error_message=message)
        snapshot = self.turn.snapshot(finished)
        end = ResponseEnd(record_of(self.turn, snapshot, finished.output), kept=False)
        self.broadcast.end_otherwise(snapshot, end)
        return finished, snapshot

    async def _store_partial(self) -> None:
        """Store the output of a response that was stopped: the conversation continues from there."""
        if not (self._accepted.done() or self._promised):
            return
        self.broadcast.release()
        cancelled = TurnFinished("cancelled", completed_items(self.output), Usage())
        self.snapshot = self.turn.snapshot(cancelled)
        is_gone = False
        try:
            async with asyncio.timeout(ABANDON_S):
                await self._store_end(self.snapshot, cancelled, self.broadcast.journal.batch, ABANDON_S)
        except Exception as error:  # the boundary: the event log stores it, as soon as that is possible
            _log_unstored(error)
            is_gone = isinstance(error, NotFound)
            record = record_of(self.turn, self.snapshot, cancelled.output)
            self.broadcast.journal.end = ResponseEnd(record, kept=True)
        self.broadcast.cut()
        if is_gone:  # its conversation: the end is stored without, before a client reads it
            await self.broadcast.flush(ABANDON_S)


def _log_unstored(error: Exception) -> None:
    """Clients delete conversations whose answers are still made: that is no news."""
    if not isinstance(error, NotFound):
        log.warning("the end of a response could not be stored: %r", error)


async def read_stored(
    services: RunServices,
    stream: Stream,
    tenant_id: UUID,
    response_id: str,
    after: int,
    find_run: Callable[[UUID, str], Run | None],
) -> None:
    """Send the stored events after this number, as they are stored, until the response has ended. Raises NotFound,
    ApiError 404 when the events are not kept any more, and ClientGone.

    `find_run` finds the run of a response that this worker takes from the queue during that time. No database
    connection is held while waiting: `presence` notifies of new events, and a slow poll covers missed notifications.
    """
    with services.presence.watching(response_id) as news:
        page = await services.running.read(tenant_id, response_id, after)
        if page.expired:
            message = "The events of this response have expired. Read it without 'stream'."
            raise ApiError(404, message, param="stream", code="events_expired")
        follow_at = 0.0
        while True:
            await stream.open()
            await stream.write([*map(encode, page.events)])
            after = page.events[-1]["sequence_number"] if page.events else after
            if run := find_run(tenant_id, response_id):
                after = await run.read(stream, after + 1) - 1
                if not run.left:
                    return
            if page.sealed:
                return
            if time.monotonic() >= follow_at:  # then read immediately: events may have come since the last read
                await services.presence.notify(FOLLOW, response_id)
                follow_at = time.monotonic() + FOLLOWED_S / 3
            else:
                async with at_most(POLL_S):
                    await news.wait()
            news.clear()
            page = await services.running.read(tenant_id, response_id, after)
