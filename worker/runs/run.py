"""One response while this worker makes it: it goes on for as long as somebody reads it or its policy says.

One of the background is in the store before it is begun, and can be begun again until something of it is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from agents import compacting
from agents.events import Event, TurnFinished, TurnStarted, Usage
from agents.message import Item
from inference.trace import Trace
from worker import sse, timing
from worker.failures import refusal, to_api_error
from worker.feed import TOKENS
from worker.ledger import Ledger
from worker.relay import BROKE
from worker.response_turn import ResponseTurn, begin, finish, finished_half, settle
from worker.runs.disconnect import GO_ON, STOP, Disconnect
from worker.runs.journal import Journal
from worker.seals import sealed
from worker.services import Services
from worker.wire.events import WireEvent
from worker.wire.narrator import Narrator

log = logging.getLogger("firsttoken.runs")

ABANDON_S = 5.0  # how long keeping half an answer may take once it was stopped


class Run:
    """`frames[n]` is the event with the number n as bytes; the first ones are those `told` before it was begun.

    `snapshot` is the response as it ended, and `error` what kept it from being stored.
    """

    def __init__(
        self,
        services: Services,
        turn: ResponseTurn,
        ledger: Ledger,
        journal: Journal,
        told: Sequence[WireEvent] = (),
    ) -> None:
        self.turn = turn
        self.frames: list[bytes] = list(map(sse.encode, told))
        self.snapshot: dict[str, Any] = turn.frame.started()
        self.error: Exception | None = None
        self.on_disconnect: Disconnect = STOP
        self._services = services
        self._ledger = ledger
        self._journal = journal
        self._narrator = Narrator(turn.frame, len(told))
        self._in_queue = self.in_background
        self._held = ExitStack()
        self._news = asyncio.Event()
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers = 0
        self._stopping = False
        self._left = False
        self._task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self.turn.frame.id

    @property
    def output(self) -> tuple[Item, ...]:
        """The items told so far."""
        return self._narrator.output

    @property
    def in_background(self) -> bool:
        return self.turn.frame.request.background is True

    @property
    def accepted(self) -> bool:
        return self._accepted.done() and not self._accepted.cancelled() and self._accepted.exception() is None

    @property
    def left(self) -> bool:
        """Whether it ended without an end, for another worker to see to."""
        return self._left and self.ended

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    async def start(self, held: ExitStack) -> None:
        """Return when the turn was accepted; raises what refuses it. `held` is closed when the response has ended."""
        self._held = held
        self._task = asyncio.create_task(self._make(), name="run")
        try:
            await asyncio.shield(self._accepted)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Stop at the next step and keep what was said. Right at any time."""
        if self._task and not self._stopping and not self.ended:
            self._stopping = True
            self._task.cancel()

    def leave(self) -> None:
        """Stop without an end, as if this worker had died: another one begins it again, or says that it failed."""
        self._left = True
        self.cancel()

    async def wait(self) -> None:
        """Return when the response has ended, however it did."""
        assert self._task is not None
        await asyncio.wait([self._task])

    async def news(self, number: int, timeout_s: float) -> list[bytes]:
        """The frames from this number on; waits for one, or gives [] after the time or at the end."""
        if number >= len(self.frames) and not self.ended:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                pass
        return self.frames[number:]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While somebody reads. When the last reader leaves early, the policy decides."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers and not self.ended and self.on_disconnect is not GO_ON:
                asyncio.get_running_loop().call_later(self.on_disconnect.grace_s, self._stop_unread)

    def _stop_unread(self) -> None:
        if not self._readers:
            self.cancel()

    async def _make(self) -> None:
        status = "refused"
        try:
            finished = await self._tell_turn()
            status = "failed"  # unless its end can be told
            status = await self._conclude(finished)
        except asyncio.CancelledError:
            status = "cancelled"
            if not self._left:
                await self._keep_half()
        except Exception as error:
            if self._accepted.done():
                raise
            status = refusal(error)
            self._accepted.set_exception(error)
        finally:
            self._held.close()
            self._ledger.record(status)
            if not self._accepted.done():
                self._accepted.cancel()
            asyncio.get_running_loop().call_soon(self._wake)  # once this task is done

    def _events(self, trace: Trace) -> AsyncGenerator[Event, None]:
        services, turn = self._services, self.turn.turn
        if turn.compacting is None:
            return services.agent.run(turn, trace)
        seal = partial(sealed, services.seals, turn.tenant_id)
        return compacting.run(services.agent, services.model, turn, trace, seal)

    async def _tell_turn(self) -> TurnFinished:
        """Tell every event of the turn but the end. What it raises before its first event refuses it."""
        trace, waits_for_token = self._ledger.trace, True
        try:
            async with aclosing(self._events(trace)) as events:
                async for event in events:
                    await self._accept()
                    if not isinstance(event, TurnStarted):
                        await self._settle()
                    self._publish(self._narrator.tell(event))
                    if waits_for_token and isinstance(event, TOKENS):
                        waits_for_token = False
                        await self._hand_over(trace)
                    if isinstance(event, TurnFinished):
                        return event
            raise RuntimeError("the turn ended without its last event")
        except Exception:  # the boundary: once a turn was accepted, whatever breaks it must still end it well
            if not self._accepted.done():
                raise
            log.exception("a turn broke")
            return TurnFinished("failed", (), Usage(), error_code="server_error", error_message=BROKE)

    async def _accept(self) -> None:
        """Store that the response is being made before anybody is told. Meanwhile the engine reads the prompt."""
        if not self._accepted.done():
            await begin(self._services, self.turn)
            self._accepted.set_result(None)

    async def _settle(self) -> None:
        """Something of the answer is about to be told: from here on it cannot be begun again."""
        if self._in_queue:
            await settle(self._services, self.turn)
            self._in_queue = False

    async def _hand_over(self, trace: Trace) -> None:
        """Let readers write the first token to their sockets, then take the time."""
        await asyncio.sleep(0)
        timing.mark_first_token(trace)

    def _publish(self, events: list[WireEvent], *, last: bool = False) -> None:
        self.frames += map(sse.encode, events)
        if self.turn.frame.request.stored:
            self._journal.note(self.turn.tenant_id, self.id, events, last=last)
        if events:
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        if not self.ended:
            self._news = asyncio.Event()

    async def _conclude(self, finished: TurnFinished) -> str:
        """Store the end before it is told, so that what was acknowledged survives. A failure to do so is the end."""
        self._stopping = True  # too late for that: two ends would be stored
        with self._ledger.trace.span("flush"):
            snapshot = self.turn.snapshot(finished)
            try:
                await finish(self._services, self.turn, snapshot, finished.output)
            except Exception as error:  # the boundary: events are out, so the last one must say what happened
                log.warning("a response could not be stored: %r", error)
                finished, snapshot = await self._fail(finished, error)
        self.snapshot = snapshot
        account = self._narrator.trace(self._ledger.close(finished.status))
        self._publish(account + self._narrator.conclude(snapshot), last=True)
        return finished.status

    async def _fail(self, finished: TurnFinished, error: Exception) -> tuple[TurnFinished, dict[str, Any]]:
        self.error = error
        answer = to_api_error(error)
        message = answer.message if answer else BROKE
        finished = replace(finished, status="failed", error_code="server_error", error_message=message)
        snapshot = self.turn.snapshot(finished)
        await self._try_to_finish(snapshot, finished.output, in_conversation=False)
        return finished, snapshot

    async def _keep_half(self) -> None:
        """Keep what was told before the answer was stopped: a person goes on from there."""
        if not (self._accepted.done() or self.in_background):
            return
        half = finished_half(self._narrator.output)
        self.snapshot = self.turn.snapshot(TurnFinished("cancelled", half, Usage()))
        await self._try_to_finish(self.snapshot, half, in_conversation=True)
        self._publish([], last=True)

    async def _try_to_finish(
        self, snapshot: dict[str, Any], output: tuple[Item, ...], *, in_conversation: bool
    ) -> None:
        try:
            async with asyncio.timeout(ABANDON_S):
                await finish(self._services, self.turn, snapshot, output, in_conversation=in_conversation)
        except Exception as error:  # the boundary: whoever reads on is told by the snapshot
            log.warning("the end of a response could not be stored: %r", error)
