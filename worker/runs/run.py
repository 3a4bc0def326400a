"""One response while this worker generates it: it runs for as long as a client reads it, or as its disconnect policy
says.

A background response is stored before it starts, and can be restarted until one of its events is sent. From then on,
and where its client intends to reconnect, another worker resumes it if this one is lost. Then only stored events are
sent, so that no client sees an event that another worker would generate differently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

from agents.checkpoint import Marks
from agents.errors import NotFound, TurnOver
from agents.events import TOKENS, Event, TextDelta, TurnFinished, TurnStarted, Usage
from agents.message import FunctionCall, Item, answered_calls, new_id
from agents.store import ResponseRecord
from agents.turn import AnswerNow, Steering
from migrations.pool import DATABASE_AWAY, certain
from worker.errors import BROKE, ApiError
from worker.http.error_mapping import refusal, to_api_error
from worker.runs.cache_diagnostics import diagnosed
from worker.runs.continuation import Continuation
from worker.runs.disconnect import GO_ON, STOP, Disconnect
from worker.runs.event_log import EventLog, Journal
from worker.runs.interrupted import InterruptedResponse
from worker.runs.ledger import Ledger
from worker.runs.record import mark_first_answer, mark_first_token
from worker.runs.replay import completed_items
from worker.runs.response_rows import Batch, ResponseEnd
from worker.runs.run_services import RunServices
from worker.runs.steering_store import Successor, check_said
from worker.runs.turn import ResponseTurn, begin, begun, finish, learn_turns, record_of, run_turn, settle, withdraw
from worker.wire import sse
from worker.wire.event_encoder import EventEncoder
from worker.wire.events import WireEvent

log = logging.getLogger("firsttoken.runs")

ABANDON_S = 5.0  # how long storing a partial response may take once it was stopped
BEGIN_S = 2.0  # how long a request waits until its row is known to be stored; then it is refused
END_S = 15.0  # how long the terminal event waits for the database: enough for a restart


class Follower(Protocol):
    """A connection that reads the frames of a run as they come."""

    @property
    def sent(self) -> int:
        """The number of the next frame to send."""
        ...

    def push(self) -> None:
        """Send the frames for which there is room."""
        ...


class Run:
    """`frames[n]` is the encoded event with the sequence number n; the first ones were sent before it began (`told`).

    `snapshot` is the final response, and `error` what kept it from being stored.
    """

    def __init__(
        self,
        services: RunServices,
        turn: ResponseTurn,
        ledger: Ledger,
        event_log: EventLog,
        told: Sequence[WireEvent] = (),
        job: dict[str, Any] | None = None,
        interrupted: InterruptedResponse | None = None,
    ) -> None:
        """`job` is what another worker needs to resume it, if one may. `interrupted`: this worker resumes it."""
        self.turn = turn
        self.frames: list[bytes] = list(map(sse.encode, told))
        beginning = None if interrupted else begun(turn)
        self._journal = Journal(turn.tenant_id, turn.frame.id, self.frames, beginning, stored=len(told))
        self._journal.on_stored, self._journal.on_lost = self._stored, self._on_lost
        self._marks = Marks(self._until_stored)
        self._job, self._interrupted = job, interrupted
        self.lost = False  # another worker owns it
        self.snapshot: dict[str, Any] = turn.frame.started()
        self.error: Exception | None = None
        self.on_disconnect: Disconnect = STOP
        self.answer_now = AnswerNow()
        self.steering = Steering()
        self.successor: Successor | None = None  # goes on with what was said to it, once it has ended
        self.next: asyncio.Future[Run | ApiError] | None = None  # of its successor, once it has ended
        self.on_successor: Callable[[Successor], None] = lambda _: None
        self._services = services
        self._ledger = ledger
        self._event_log = event_log
        self._encoder = EventEncoder(turn.frame, len(told))
        self._held = ExitStack()
        self._began = False
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsettled: list[Event] | None = [] if self.in_background and interrupted is None else None
        self._settling: asyncio.Task[None] | None = None
        self._first_token: int | None = None if interrupted is None else 0  # the number of its frame
        self._marked = interrupted is not None  # in the trace, once that frame was sent
        self._first_answer = self._first_token  # the same for the first text of the answer
        self._answered = self._marked
        self._over = False  # its terminal event was published
        self._diagnosis: dict[str, Any] | None = None  # why its prompt was not cached, if the request asks for it
        self._kept = asyncio.Event()  # more events are stored
        self._readers = 0
        self._unread: asyncio.TimerHandle | None = None  # while there is no reader: when the run is cancelled
        self._followers: list[Follower] = []
        self._moved = asyncio.Event()  # a follower has sent something, or left
        self._stopping = False
        self._left = False
        self._task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.turn.frame.id

    @property
    def output(self) -> tuple[Item, ...]:
        """The items so far."""
        return self._encoder.output

    @property
    def told(self) -> int:
        """The number of frames that may be sent."""
        if self._journal.continuation is None or self._over:
            return len(self.frames)
        return min(len(self.frames), self._journal.stored)

    @property
    def in_background(self) -> bool:
        return self.turn.frame.request.background is True

    @property
    def is_resumable(self) -> bool:
        """Whether another worker resumes it if this one is lost."""
        return self._job is not None

    @property
    def open_calls(self) -> list[FunctionCall]:
        """The calls with which it has ended, for the caller to run or approve: those of tools have their results."""
        calls, known = [item for item in self.output if isinstance(item, FunctionCall)], answered_calls(self.output)
        return [call for call in calls if call.runs and call.call_id not in known]

    @property
    def can_restart(self) -> bool:
        """Whether another worker may restart it: it is in the queue, and none of its events was sent."""
        return self._unsettled is not None

    @property
    def accepted(self) -> bool:
        return self._accepted.done() and not self._accepted.cancelled() and self._accepted.exception() is None

    @property
    def left(self) -> bool:
        """Whether it stopped without a terminal event, so that another worker continues it."""
        return self._left and self.ended

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    async def start(self, held: ExitStack) -> None:
        """Return when the turn was accepted; raises what refuses it. `held` is closed when the response has ended."""
        self._held = held
        self._task = asyncio.create_task(self._execute(), name="run")
        self._task.add_done_callback(self._release)
        try:
            await asyncio.shield(self._accepted)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Stop at the next await and keep the output so far. Idempotent."""
        if self._task and not self._stopping and not self.ended:
            self._stopping = True
            self._task.cancel()

    def _release(self, _task: asyncio.Task[None]) -> None:
        """Also called for a task that was cancelled before its first line ran."""
        self._held.close()
        if not self._accepted.done():
            self._accepted.cancel()

    def leave(self) -> None:
        """Stop without a terminal event, as if this worker had died: another one restarts it, or marks it as failed."""
        self._left = True
        self.cancel()

    def say(self, said: tuple[Item, ...]) -> str:
        """Keep what is said to a response that is not stored; returns the id of its successor. Raises TurnOver,
        TooMuchSaid."""
        if self._stopping:
            raise TurnOver(self.id)
        before = self.successor or Successor(new_id("resp"), ())
        self.successor = replace(before, said=check_said((*before.said, *said)))
        return before.id

    def steer(self, steer_id: str | None, *, stop_tools: bool) -> bool:
        """Its successor waits: end at the next safe place. Returns whether its readers are told."""
        told = steer_id is not None and not self._stopping and self._unsettled is None
        if told:
            self._publish(list(map(sse.encode, self._encoder.steered(steer_id or ""))))
        self.steering.ask(stop_tools=stop_tools)
        return told

    async def wait(self) -> None:
        """Return when the response has ended, in whatever way."""
        assert self._task is not None
        await asyncio.wait([self._task])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """In the block, a client reads. When the last reader leaves early, the disconnect policy applies."""
        self._readers += 1
        self._disarm()
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers and not self.ended:
                self.expect_reader()

    def expect_reader(self) -> None:
        """There is no reader yet: the disconnect policy decides for how long."""
        self._disarm()
        if self.on_disconnect is not GO_ON and not self._readers:
            self._unread = asyncio.get_running_loop().call_later(self.on_disconnect.grace_s, self.cancel)

    def _disarm(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    @contextmanager
    def followed_by(self, follower: Follower) -> Iterator[None]:
        """In the block, the follower is called for each new frame."""
        self._followers.append(follower)
        try:
            follower.push()
            yield
        finally:
            self._followers.remove(follower)
            self._moved.set()

    def on_sent(self, sent: int) -> None:
        """The frames before this number were written to a client's socket."""
        self._moved.set()
        if not self._marked and self._first_token is not None and sent > self._first_token:
            self._mark_first_token()
        if not self._answered and self._first_answer is not None and sent > self._first_answer:
            self._mark_first_answer()

    async def open(self) -> None:
        """Store that the response has begun, before any event is sent. Meanwhile the engine prefills the prompt."""
        if self._interrupted is None:
            self._began = True
            await certain(lambda: begin(self._services, self.turn), BEGIN_S)
        self._accepted.set_result(None)

    def write(self, events: Sequence[Event]) -> None:
        if self._unsettled is None:
            self._tell(events)
            return
        self._tell([event for event in events if isinstance(event, TurnStarted)])
        self._unsettled += [event for event in events if not isinstance(event, TurnStarted)]
        if self._unsettled and self._settling is None:
            self._settling = asyncio.create_task(self._settle(), name="settle")

    async def drain(self) -> None:
        """Wait while there are followers and all of them are behind: back-pressure of the clients on the turn."""
        while self._followers and all(follower.sent < len(self.frames) for follower in self._followers):
            self._moved.clear()
            await self._moved.wait()

    def _stored(self) -> None:
        if self._journal.continuation is not None:
            self._kept.set()
            for follower in self._followers:
                follower.push()

    async def _until_stored(self) -> None:
        """Return when all events so far are stored."""
        while self._unsettled is not None or self._journal.stored < len(self.frames):
            self._event_log.note(self._journal, waited_for=True)
            self._kept.clear()
            await self._kept.wait()

    async def _until_settled(self) -> None:
        """Return when no other worker can restart the response: calls of MCP servers must not run twice."""
        if self._unsettled is not None:
            await certain(lambda: settle(self._services, self.turn), BEGIN_S)
            self._emit_held_back()

    def _on_lost(self) -> None:
        if self._journal.continuation is not None:
            self.lost = True
            self.leave()

    def _replay(self, events: Sequence[Event]) -> None:
        """Take note of the events that the lost worker sent."""
        for event in events:
            self._encoder.replay(event)

    async def _settle(self) -> None:
        """An event is about to be sent: from here on the response cannot be restarted."""
        try:
            await settle(self._services, self.turn)
        except Exception as error:  # the boundary: no event is sent until the end is stored, which retries this
            log.warning("a queued response could not be announced, retrying later: %r", error)
        else:
            self._emit_held_back()

    def _emit_held_back(self) -> None:
        if held := self._held_back_frames():
            self._publish(held)

    def _held_back_frames(self) -> list[bytes]:
        """The frames of the events that were held back until now."""
        held, self._unsettled = self._unsettled or (), None
        return self._encoded(held)

    async def _execute(self) -> None:
        status = "refused"
        try:
            finished = await self._run_turn()
            status = "failed"  # unless its end can be stored
            status = await self._conclude(finished)
        except asyncio.CancelledError:
            status = "cancelled"
            if not self._accepted.done():
                await self._withdraw()
            if not self._left:
                await self._store_partial()
        except Exception as error:
            if self._accepted.done():
                raise
            status = refusal(error)
            await self._withdraw()
            self._accepted.set_exception(error)
        finally:
            if self._settling:
                self._settling.cancel()
            self._held.close()
            self._ledger.record(status)
            if self.successor is not None and not self._left:
                self.on_successor(self.successor)

    async def _withdraw(self) -> None:
        """No event was sent, but the row may be stored: the answer of the database was lost."""
        if not self._began:
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
            turn = replace(turn, answer_now=self.answer_now, steering=self.steering)
            resumes = turn.compacting is None and turn.sampling.top_logprobs is None and not turn.only_reads
            if self._job is not None and resumes and not turn.servers:
                self._journal.continuation = Continuation(self._job, self._marks, lambda: self._unsettled is None)
            if self._interrupted is not None:
                turn = replace(turn, tells_place=False)
                return await self._services.agent.resume(
                    turn, trace, self, self._interrupted.checkpoint, self._marks, self._replay
                )
            marks = self._marks if self._journal.continuation else None
            if turn.servers and self.in_background:
                marks = Marks(self._until_settled)
            await learn_turns(self._services, turn)
            finished = await run_turn(self._services, turn, trace, self, marks)
            self._diagnosis = await diagnosed(self._services, self.turn, trace)
            return finished
        except Exception:  # the boundary: an accepted turn always ends with a terminal event
            if not self._accepted.done():
                raise
            log.exception("a turn failed unexpectedly")
            return TurnFinished("failed", (), Usage(), error_code="server_error", error_message=BROKE)

    def _tell(self, events: Sequence[Event]) -> None:
        if frames := self._encoded(events):
            self._publish(frames)

    def _encoded(self, events: Sequence[Event]) -> list[bytes]:
        frames: list[bytes] = []
        for event in events:
            frames += self._encoder.frames(event)
            if self._first_token is None and isinstance(event, TOKENS):
                self._first_token = len(self.frames) + len(frames) - 1
                if not self.turn.frame.request.streamed:  # not sent by itself: it counts when it was generated
                    self._mark_first_token()
            if self._first_answer is None and isinstance(event, TextDelta):
                self._first_answer = len(self.frames) + len(frames) - 1
                if not self.turn.frame.request.streamed:
                    self._mark_first_answer()
        return frames

    def _mark_first_token(self) -> None:
        self._marked = True
        mark_first_token(self._ledger.trace)

    def _mark_first_answer(self) -> None:
        self._answered = True
        mark_first_answer(self._ledger.trace, after_others=self._first_answer != self._first_token)

    def _publish(self, frames: list[bytes], *, last: bool = False) -> None:
        self.frames += frames
        self._over = last
        for follower in self._followers:
            follower.push()
        if self.turn.frame.request.stored:
            self._journal.last = last
            waited_for = self._journal.continuation is not None and bool(self._followers)
            self._event_log.note(self._journal, waited_for=waited_for)

    async def _conclude(self, finished: TurnFinished) -> str:
        """Store the end before it is sent, so that what was acknowledged survives. If that fails, the response
        fails."""
        self._stopping = True  # too late to cancel: two ends would be stored
        if self._settling:
            await asyncio.wait([self._settling])
        with self._ledger.trace.span("flush"):
            snapshot = self.turn.snapshot(finished)
            if self._diagnosis is not None:
                snapshot["prompt_cache_diagnostics"] = self._diagnosis
            record = replace(record_of(self.turn, snapshot, finished.output), remembered=finished.remembered)
            held = self._held_back_frames()
            end = self._encoded_end(snapshot)
            events = self._journal.batch(held + end, skipped=int(self._encoder.tells_trace))
            try:
                await certain(lambda: self._finish(record, events), END_S)
            except Exception as error:  # the boundary: events were sent, so the last one must say what happened
                if isinstance(error, NotFound) and self._journal.continuation is not None:
                    self._left = self.lost = True
                    return "cancelled"
                log.warning("a response could not be stored: %r", error)
                finished, snapshot = self._failed(finished, error)
                end = self._encoded_end(snapshot)
        self.snapshot = snapshot
        if self._followers:  # where no event was stored before the end, they go out below, together with that
            if self._first_token is not None and not self._marked:
                self._mark_first_token()
            if self._first_answer is not None and not self._answered:
                self._mark_first_answer()
        trace = self._encoder.trace(self._ledger.payload(finished.status)) if self._encoder.tells_trace else []
        self._publish([*held, *map(sse.encode, trace), *end], last=True)
        if self.error is not None:
            await self._try_to_flush()
        return finished.status

    async def _finish(self, record: ResponseRecord, events: Batch) -> None:
        """Idempotent: its successor is taken once."""
        self.successor = await finish(self._services, self.turn, record, events) or self.successor

    def _encoded_end(self, snapshot: dict[str, Any]) -> list[bytes]:
        return list(map(sse.encode, self._encoder.conclude(snapshot)))

    def _failed(self, finished: TurnFinished, error: Exception) -> tuple[TurnFinished, dict[str, Any]]:
        """The response as failed. The event log stores this end in place of one that may have been stored."""
        self.error = error
        answer = to_api_error(error)
        message = answer.message if answer else BROKE
        finished = replace(finished, status="failed", error_code="server_error", error_message=message)
        snapshot = self.turn.snapshot(finished)
        self._journal.end = ResponseEnd(record_of(self.turn, snapshot, finished.output), kept=False)
        return finished, snapshot

    async def _store_partial(self) -> None:
        """Store the output of a response that was stopped: the conversation continues from there."""
        if not (self._accepted.done() or self.in_background):
            return
        self._emit_held_back()
        half = completed_items(self._encoder.output)
        self.snapshot = self.turn.snapshot(TurnFinished("cancelled", half, Usage()))
        record = record_of(self.turn, self.snapshot, half)
        events = self._journal.batch()
        try:
            async with asyncio.timeout(ABANDON_S):
                await certain(lambda: self._finish(record, events), ABANDON_S)
        except Exception as error:  # the boundary: the event log stores it, as soon as that is possible
            log.warning("the end of a response could not be stored, retrying: %r", error)
            self._journal.end = ResponseEnd(record, kept=True)
        self._publish([], last=True)

    async def _try_to_flush(self) -> None:
        """A client that reads the response right after a failure should find it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ABANDON_S):
                await self._event_log.flush()
