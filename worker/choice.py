"""One choice of a chat completion while it runs: its turn, how it is told, and where it is accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from agents.agent import Agent
from agents.events import Event, TurnFinished, Usage
from agents.turn import Turn
from inference.errors import InferenceError
from inference.trace import Trace
from worker import sse
from worker.ledger import Ledger
from worker.relay import gather, relay
from worker.services import PRINCIPAL, SERVICES, TRACE
from worker.stream import EventStream
from worker.wire.chat_choice import ChoiceNarrator
from worker.wire.chat_completion import Chunk, Completion, failure


@dataclass(frozen=True, slots=True)
class Choice:
    """The choices of a completion run beside each other; in the KV cache they share their prompt."""

    agent: Agent
    turn: Turn
    narrator: ChoiceNarrator
    ledger: Ledger

    @classmethod
    def of(cls, request: web.Request, turn: Turn, narrator: ChoiceNarrator, completion: Completion) -> Choice:
        """The first choice is what the request's own trace tells; each other one has a trace of the same beginning."""
        services, trace = request.app[SERVICES], request[TRACE]
        if narrator.index:
            trace = Trace(start_ns=trace.start_ns, started_at=trace.started_at, attributes={"choice": narrator.index})
        metadata = completion.request.metadata
        ledger = Ledger(services, request[PRINCIPAL], trace, completion.id, None, completion.model, metadata)
        return cls(services.agent, turn, narrator, ledger)

    @property
    def trace(self) -> Trace:
        return self.ledger.trace

    async def stream(self, stream: EventStream, frame: Callable[[dict[str, Any]], Chunk]) -> TurnFinished:
        """Send the choice as it happens, to its last piece. Raises ClientGone, and what refuses the turn."""

        def spell(event: Event) -> bytes:
            return b"".join(sse.encode_data(frame(piece)) for piece in self.narrator.tell(event))

        with self.ledger.recording() as outcome:
            finished = await self._relayed(stream, spell)
            outcome.status = finished.status
            failed = finished.status == "failed"
            last = {"error": failure(finished)} if failed else frame(self.narrator.conclude(finished))
            with self.trace.span("flush", blocked_ms=stream.blocked_ns / 1e6):
                await stream.write(sse.encode_data(last))
            self.ledger.close(finished.status)
            return finished

    async def whole(self) -> TurnFinished:
        """Wait for the end of the choice. Raises what refuses the turn."""
        with self.ledger.recording() as outcome:
            finished = await gather(self.agent.run(self.turn, self.trace), self.trace)
            outcome.status = finished.status
            self.ledger.close(finished.status)
            return finished

    async def _relayed(self, stream: EventStream, spell: Callable[[Event], bytes]) -> TurnFinished:
        try:
            return await relay(self.agent.run(self.turn, self.trace), stream, spell, self.trace)
        except InferenceError as error:
            if not stream.is_open:
                raise
            # Another choice has begun to stream: this one can only be told as failed.
            return TurnFinished("failed", (), Usage(), error_message=str(error))


async def all_of(choices: Sequence[Coroutine[Any, Any, TurnFinished]]) -> list[TurnFinished]:
    """Run them beside each other. What one of them raises ends the others, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(choice) for choice in choices]
    except ExceptionGroup as raised:
        raise raised.exceptions[0] from None
    return [task.result() for task in tasks]
