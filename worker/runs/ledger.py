"""What is said of a turn when it is over: to the caller in its trace, to the operators in telemetry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from inference.trace import Trace
from worker.auth.principal import Principal
from worker.errors import ClientGone
from worker.failures import refusal
from worker.runs.record import TurnRecord, tpot_ms, ttft_ms
from worker.runs.run_services import RunServices
from worker.wire.options import SURFACE

REFUSED = "refused"


@dataclass(slots=True)
class Outcome:
    status: str = REFUSED


@dataclass(frozen=True, slots=True)
class Ledger:
    """The identity of one turn, and the two places where it is accounted for."""

    services: RunServices
    principal: Principal
    trace: Trace
    response_id: str
    conversation_id: str | None = None
    model: str = ""  # as the request names it: an agent may have a surface of its own
    metadata: Mapping[str, str] | None = None  # the request's: it may name its surface

    @property
    def surface(self) -> str:
        """Where the answer is read: as the request says, if that has a target, or its agent; else people in a browser
        chat, and programs embed."""
        named = (self.metadata or {}).get(SURFACE)
        if named in self.services.targets.by_surface:
            return str(named)
        usual = "chat" if self.principal.is_watching else "embedded"
        return self.services.roster.of(self.model).surface or usual

    def payload(self, status: str) -> dict[str, Any]:
        """End the trace and give its public form. Nothing is added to it afterwards."""
        self.trace.finish()
        return self._record(status).payload()

    def record(self, status: str) -> None:
        """End the trace, if it has not ended, and hand it to telemetry."""
        self.services.telemetry.record(self._record(status))

    @contextmanager
    def recording(self) -> Iterator[Outcome]:
        """Record the turn at the end of the block, however that is left. Until its status is known it was refused, by
        us or for the request's own sake."""
        outcome = Outcome()
        try:
            yield outcome
        except (ClientGone, asyncio.CancelledError):
            outcome.status = "cancelled"
            raise
        except Exception as error:
            if outcome.status == REFUSED:
                outcome.status = refusal(error)
            raise
        finally:
            self.record(outcome.status)

    def _record(self, status: str) -> TurnRecord:
        trace, surface = self.trace, self.surface
        ttft, tpot = ttft_ms(trace), tpot_ms(trace)
        return TurnRecord(
            trace,
            self.principal.tenant_id,
            status,
            surface,
            self.services.model.name,
            self.response_id,
            self.conversation_id,
            ttft,
            tpot,
            self.services.targets.met(surface, status, ttft, tpot),
        )
