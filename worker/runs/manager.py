"""The responses that this worker runs, and the recovery of those whose worker has died."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from aiohttp import web

from agents.errors import STOPPED, NotFound, TurnOver, WaitsForCaller
from agents.message import FunctionCall, Item, new_id
from agents.progress import CannotResume
from inference.trace import Trace
from migrations.pool import DATABASE_AWAY, certain
from worker.auth.principal import Principal
from worker.errors import BUSY, ApiError
from worker.http.error_mapping import explained, to_api_error
from worker.lifecycle.supervisor import Healthy, Supervised, at_most
from worker.runs.background import RETRY_S, Backlog, job_of, restored_turn
from worker.runs.continuation import InterruptedResponse
from worker.runs.disconnect import GO_ON, Disconnect
from worker.runs.event_log import EventLog
from worker.runs.ledger import Ledger
from worker.runs.presence import ANSWER, CANCEL, STEER, STEER_AT_ONCE
from worker.runs.run import Run, RunCancelled
from worker.runs.run_services import RunServices
from worker.runs.running_store import QUEUED, NoCapacity, OwnedResponse
from worker.runs.steering_store import SUCCESSOR, Successor
from worker.runs.turn import hydrate
from worker.wire.response import Dialect
from worker.wire.response_request import ResponseRequest

log = logging.getLogger("firsttoken.runs")

SAY_S = 5.0  # how long a client waits until what it says is known to be stored
SUCCESSOR_S = 30.0  # how long a successor waits for a reader: clients read the response before it to its end first
PASS_EVERY_S = 2.0  # a response is abandoned when two passes find it so: its worker may just be reconnecting
FORGET_EVERY_S = 3600.0
EVENT_DAYS = 1.0  # for which an ended response can be streamed again: its client may be away over night
SILENT_S = 60.0  # a pass is a few statements, each with a timeout
CLOSE_S = 10.0
CANCEL_S = 5.0  # how long another worker may take to stop before the client gets the current state
POLL_S = 2.0  # between two reads of a response without notifications
ASK_AGAIN_S = 0.5  # a worker that has just taken a response from the queue may miss the first request
NO_EVENTS = 2**31 - 1  # above every sequence number
SILENT_WORKER_S = 45.0  # three times the interval of a worker's heartbeat
RESUMED_MAX = 8  # resumed responses at a time: about as many as a machine generates at once
RESUME_S = 60.0  # how long a resumed response waits for an engine, or for capacity
WORKER_GONE = {"code": "server_error", "message": STOPPED}


@dataclass(frozen=True, slots=True)
class Steer:
    """What was said to a response, and the id of the one that answers it. `told`: its readers have the event."""

    id: str
    successor: str
    told: bool


class Runs:
    """Runs of all tenants by response id: every lookup names the tenant."""

    def __init__(self, services: RunServices, *, background: int) -> None:
        """`background`: the number of queued responses that this worker runs at once."""
        self.services = services
        self.backlog = Backlog(services, background, self._run_queued)
        self._event_log = EventLog(services.running, services.presence.worker, services.presence.is_followed)
        self._runs: dict[str, Run] = {}
        self._suspects: set[OwnedResponse] = set()
        self._resuming: dict[asyncio.Task[None], str] = {}
        self._succeeding: dict[asyncio.Task[Run | ApiError], str] = {}
        self._forgot_at = float("-inf")
        self._janitor: Supervised | None = None

    async def start(self) -> None:
        presence = self.services.presence
        presence.on[CANCEL].append(self._here(Run.cancel))
        presence.on[ANSWER].append(self._here(lambda run: run.answer_now.ask()))
        presence.on[STEER].append(self._here(lambda run: run.steer(None, stop_tools=False)))
        presence.on[STEER_AT_ONCE].append(self._here(lambda run: run.steer(None, stop_tools=True)))
        presence.on[QUEUED].append(lambda _: self.backlog.look())
        supervisor = self.services.supervisor
        await presence.start(supervisor)
        self._event_log.start(supervisor)
        self.backlog.start()
        self._janitor = supervisor.start("janitor", self._run_janitor, silent_s=SILENT_S)

    async def close(self) -> None:
        """Stop all runs. Other workers continue those that can move, the others fail with their output so far."""
        if self._janitor:
            await self._janitor.stop()
        for task in (*self._resuming, *self._succeeding):
            task.cancel()
        await self.backlog.close()  # from here on nothing begins
        for run in self._runs.values():
            (run.leave if run.can_move else run.abort)()
        await self.idle(CLOSE_S)
        await self._event_log.close()
        await self.services.presence.close()

    async def end_all(self) -> None:
        """End all runs, each with a terminal event. Those that another worker can continue are left to it."""
        for run in tuple(self._runs.values()):
            if run.can_move:
                run.leave()
        self.services.agent.turns.interrupt()
        await self.idle()

    @property
    def busy(self) -> bool:
        return bool(self._runs)

    async def idle(self, timeout_s: float | None = None) -> None:
        """Return when all present runs have ended, or after the timeout."""
        waits = [asyncio.ensure_future(run.wait()) for run in self._runs.values()]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s)

    async def create(
        self,
        principal: Principal,
        trace: Trace,
        body: ResponseRequest,
        *,
        dialect: Dialect,
        on_disconnect: Disconnect,
        id: str | None = None,
        remembered: tuple[Item, ...] | None = None,
        items: tuple[Item, ...] | None = None,
        resumable: bool = False,
    ) -> Run:
        """Start the response to a validated request. `id` is that of the response, by default a new one; `remembered`
        are the items that precede the request, and `items` its own, where they need not be read. `resumable`: another
        worker resumes it when this one is lost. Raises the errors that refuse the request.
        """
        services = self.services
        frame = services.frame(body.entitled(principal.best_class), id=id or new_id("resp"), dialect=dialect)
        ledger = Ledger(services, principal, trace, frame)
        with ledger.entering() as places:
            with trace.span("hydrate") as span:
                turn = await hydrate(services, principal, frame, remembered, trace)
                turn = turn if items is None else replace(turn, items=items)
                span.attributes["items"] = len(turn.history)
            held = places.pop_all()
        job = job_of(services, turn, on_disconnect.grace_s) if resumable and body.stored else None
        run = Run(turn, ledger, self._event_log, job=job, promised=items is not None)
        await self._begin(run, held, on_disconnect)
        return run

    async def _run_queued(self, taken: OwnedResponse) -> None:
        """Run a response that this worker took from the queue to its end. Raises the errors that refuse it."""
        services = self.services
        queued = await services.queue.job(taken.tenant_id, taken.response_id)
        turn, ledger = await restored_turn(services, taken, queued.request, queued.caller)
        sent_before = (await services.running.read(taken.tenant_id, taken.response_id, -1)).events
        job = job_of(services, turn, GO_ON.grace_s)
        run = Run(turn, ledger, self._event_log, sent_before=sent_before, job=job)
        with suppress(RunCancelled):  # it has stored its end
            await self._begin(run, ExitStack(), GO_ON)
            await run.wait()

    async def _begin(self, run: Run, held: ExitStack, on_disconnect: Disconnect) -> None:
        """Start a response; raises the errors that refuse it. `held` is closed at its end."""
        run.readers.policy = on_disconnect
        run.on_successor = partial(self._succeed, run)
        self._runs[run.id] = run
        held.callback(self._runs.pop, run.id)
        held.enter_context(self.services.authenticator.revocable(run.turn.principal, run.cancel))
        await run.start(held)
        self.services.presence.notify_local(run.id)
        if run.was_known:
            await self._heed(run)

    async def _heed(self, run: Run) -> None:
        """Something may have been said to it before it was here. Where that cannot be read, it is not ended early."""
        with suppress(NotFound, *DATABASE_AWAY):
            if SUCCESSOR in (await self.services.responses.get(run.turn.tenant_id, run.id)).body:
                run.steering.ask()

    def get(self, tenant_id: UUID, response_id: str) -> Run | None:
        run = self._runs.get(response_id)
        return run if run and run.accepted and run.turn.tenant_id == tenant_id else None

    async def ended(self, tenant_id: UUID, response_id: str) -> None:
        """Return when a stored response has ended, on any worker. Raises NotFound."""
        run = self.get(tenant_id, response_id)
        if run is not None:
            with run.readers.reading():
                await run.wait()
        with self.services.presence.watching(response_id) as news:
            while not (await self.services.running.read(tenant_id, response_id, NO_EVENTS)).sealed:
                async with at_most(POLL_S):
                    await news.wait()
                news.clear()

    async def recorded(self, tenant_id: UUID, response_id: str) -> None:
        """Return when the turn of a response that has ended is recorded: clients may read its end from the database
        before this worker hears that it is stored."""
        run = self.get(tenant_id, response_id)
        if run is not None and run.is_ending:
            await run.wait()

    async def cancel(self, tenant_id: UUID, response_id: str) -> dict[str, Any]:
        """Stop a response on any worker, wait for its end and return its final state. Raises NotFound."""
        run = self.get(tenant_id, response_id)
        if run is not None:
            run.cancel()
            await run.wait()
            return run.snapshot
        with self.services.presence.watching(response_id) as news:
            page = await self.services.running.read(tenant_id, response_id, NO_EVENTS)
            async with at_most(CANCEL_S):
                while not page.sealed:
                    await self._request_cancel(tenant_id, response_id, news)
                    page = await self.services.running.read(tenant_id, response_id, NO_EVENTS)
        return page.body

    async def answer_now(self, tenant_id: UUID, response_id: str) -> None:
        """End the reasoning of a response on any worker; without effect if it does not reason. Raises NotFound."""
        run = self.get(tenant_id, response_id)
        if run is not None:
            run.answer_now.ask()
        elif not (await self.services.running.read(tenant_id, response_id, NO_EVENTS)).sealed:
            await self.services.presence.notify(ANSWER, response_id)

    async def steer(
        self, tenant_id: UUID, response_id: str, said: tuple[Item, ...], *, stop_tools: bool = False
    ) -> Steer:
        """Say something to a response that runs on any worker: it ends at the next safe place, and its successor
        answers. Raises NotFound, TurnOver, TooMuchSaid."""
        run, steer_id = self.get(tenant_id, response_id), new_id("steer")
        if run is not None and not run.turn.frame.request.stored:
            successor = run.say(said)
        else:
            successor = await certain(lambda: self.services.steering.say(tenant_id, response_id, said), SAY_S)
        if run is None:
            with suppress(*DATABASE_AWAY):  # it is stored: the response ends by itself, only later
                await self.services.presence.notify(STEER_AT_ONCE if stop_tools else STEER, response_id)
        told = run is not None and run.steer(steer_id, stop_tools=stop_tools)
        return Steer(steer_id, successor, told)

    def _succeed(self, run: Run, successor: Successor) -> None:
        """The response has ended, and this worker has taken its successor."""
        run.next = task = asyncio.create_task(self._begin_successor(run, successor), name="successor")
        self._succeeding[task] = successor.id
        task.add_done_callback(self._succeeding.pop)

    async def _begin_successor(self, run: Run, successor: Successor) -> Run | ApiError:
        """The run of what goes on with what was said, in the same way; or what refused it, as which it has ended."""
        turn, request = run.turn, run.turn.frame.request
        previous_id = None if request.conversation else run.id
        update: dict[str, Any] = {"input": [], "previous_response_id": previous_id, "background": None}
        if any(isinstance(item, FunctionCall) and item.runs for item in run.output):
            update["tool_choice"] = request.choice.once_called
        usual = run.readers.policy
        try:
            if run.snapshot["status"] == "cancelled":
                raise TurnOver(run.id)
            if run.open_calls:
                raise WaitsForCaller
            started = await self.create(
                turn.principal,
                Trace(attributes={"firsttoken.steers": run.id}),
                request.model_copy(update=update),
                dialect=turn.frame.dialect,
                on_disconnect=usual if usual is GO_ON else Disconnect(max(usual.grace_s, SUCCESSOR_S)),
                id=successor.id,
                remembered=None if request.stored else (*turn.history, *turn.items, *run.output),
                items=successor.said,
                resumable=run.is_resumable,
            )
            started.readers.expect()
        except Exception as error:  # the boundary: any error that prevents its start is its end
            answer = explained(error, log, "the successor %s of %s", successor.id, run.id)
            if request.stored and not isinstance(error, RunCancelled):
                owned = OwnedResponse(turn.tenant_id, successor.id, self.services.presence.worker)
                with suppress(*DATABASE_AWAY):  # this worker owns it: the next pass retries
                    await self.services.running.give_up(owned, answer.failure)
            answer.__cause__ = error
            return answer
        return started

    async def _request_cancel(self, tenant_id: UUID, response_id: str, news: asyncio.Event) -> None:
        """Cancel it in the queue or at its worker. Returns when there are new events, or after ASK_AGAIN_S."""
        if await self.services.queue.cancel(tenant_id, response_id):
            return
        await self.services.presence.notify(CANCEL, response_id)
        async with at_most(ASK_AGAIN_S):
            await news.wait()
        news.clear()

    def _here(self, act: Callable[[Run], object]) -> Callable[[str], None]:
        """Does that to a response that this worker runs."""

        def done(response_id: str) -> None:
            if response_id in self._runs:
                act(self._runs[response_id])

        return done

    async def _give_up(self, owned: OwnedResponse) -> None:
        """For a response of a lost worker, or of this one without a run: an answer of the database was lost. Then no
        event was sent, unless some are stored.
        """
        is_ours = owned.worker == self.services.presence.worker
        if await self.services.queue.put_back(owned, died=not is_ours):
            return
        if is_ours:
            await self.services.running.withdraw(owned.tenant_id, owned.response_id, owned.worker)
        if await self._adopt(owned):
            return
        await self.services.running.give_up(owned, WORKER_GONE)

    async def _adopt(self, owned: OwnedResponse) -> bool:
        """Resume a response of a lost worker. Whether it is resumed, now or in one of the next passes."""
        worker, has_room = self.services.presence.worker, len(self._resuming) < RESUMED_MAX
        try:
            interrupted = await self.services.running.adopt(owned, worker, has_room=has_room)
        except NoCapacity:
            return True
        except CannotResume as reason:
            log.info("%s cannot be resumed: %s", owned.response_id, reason)
            return False
        if interrupted is None:
            return False
        resuming = self._resume_or_end(OwnedResponse(owned.tenant_id, owned.response_id, worker), interrupted)
        task = asyncio.create_task(resuming, name="go on")
        self._resuming[task] = owned.response_id
        task.add_done_callback(self._resuming.pop)
        return True

    async def _resume_or_end(self, owned: OwnedResponse, interrupted: InterruptedResponse) -> None:
        try:
            run = await self._resume(owned, interrupted)
        except RunCancelled:
            return
        except CannotResume as reason:
            log.info("%s cannot be resumed: %s", owned.response_id, reason)
        except Exception as error:  # the boundary: any error that prevents resuming ends it
            answer = explained(error, log, "resuming %s", owned.response_id)
            log.info("%s cannot be resumed: %s", owned.response_id, answer.message)
        else:
            log.info("%s is resumed here after event %d", owned.response_id, len(interrupted.events) - 1)
            await run.wait()
            return
        with suppress(*DATABASE_AWAY):  # this worker owns it: the next pass retries
            await self.services.running.give_up(owned, WORKER_GONE)

    async def _resume(self, owned: OwnedResponse, interrupted: InterruptedResponse) -> Run:
        """Resume behind the stored events, once there is an engine and capacity. Raises CannotResume, and what refuses
        it."""
        job, give_up_at = interrupted.job, time.monotonic() + RESUME_S
        policy = GO_ON if job["grace_s"] is None else Disconnect(job["grace_s"])
        while True:
            try:
                turn, ledger = await restored_turn(self.services, owned, job["request"], job["caller"], job["history"])
                run = Run(
                    *(turn, ledger, self._event_log),
                    sent_before=interrupted.events,
                    job=dict(job),
                    interrupted=interrupted,
                )
                await self._begin(run, ExitStack(), policy)
            except Exception as error:  # the boundary: transient errors are retried
                answer = to_api_error(error)
                if answer is None or answer.status not in BUSY or time.monotonic() >= give_up_at:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                run.readers.expect()
                return run

    def _makes(self, owned: OwnedResponse) -> bool:
        id = owned.response_id
        here = id in (*self._runs, *self._resuming.values(), *self._succeeding.values())
        return here or self._event_log.knows(id) or self.backlog.holds(owned)

    async def _run_janitor(self, healthy: Healthy) -> None:
        while True:
            await self._janitor_pass(healthy)
            healthy()
            await asyncio.sleep(PASS_EVERY_S)

    async def _janitor_pass(self, healthy: Healthy) -> None:
        """End abandoned responses, release keys, and delete expired events; for all workers at one of them only."""
        await self.services.idempotency_keys.settle_all()
        running, worker = self.services.running, self.services.presence.worker
        is_janitor = await running.be_janitor(worker)
        if is_janitor:
            await running.end_silent(SILENT_WORKER_S)
        listed = await running.abandoned(worker, of_others=is_janitor)
        abandoned = {owned for owned in listed if not self._makes(owned)}
        for owned in abandoned & self._suspects:
            await self._give_up(owned)
            healthy()
        self._suspects = abandoned
        if is_janitor and time.monotonic() - self._forgot_at >= FORGET_EVERY_S:
            await running.forget(EVENT_DAYS)
            await self.services.idempotency_keys.forget()
            self._forgot_at = time.monotonic()


RUNS: web.AppKey[Runs] = web.AppKey("runs", Runs)
