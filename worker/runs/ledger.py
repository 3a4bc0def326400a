"""The accounting of a turn: in its trace for the caller, in telemetry for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import field
from math import inf
from time import monotonic
from typing import Any, Protocol

from agents.definition import BATCH, Surface
from agents.routing.policy import named_by
from agents.turn import Owner, Turn
from inference.frozen import changed, dataclass
from inference.generation import NO_DEADLINE, Due, Priority
from inference.language_model import LanguageModel
from inference.trace import Trace
from worker.auth.principal import Principal
from worker.edge.limit_settings import REFUSE, WAIT
from worker.errors import ClientGone
from worker.http.error_mapping import refusal
from worker.runs.record import TurnRecord, tpot_ms, ttfa_ms, ttft_ms
from worker.runs.run_services import RunServices
from worker.telemetry.canaries import note_arm
from worker.wire.options import LATE, SURFACE, TurnRequest

REFUSED = "refused"
NO_POLICY = Surface()


class Named(Protocol):
    """An answer with the names under which it is recorded."""

    @property
    def id(self) -> str: ...

    @property
    def model(self) -> str:
        """As the request names it: an agent may have a surface of its own."""
        ...

    @property
    def request(self) -> TurnRequest: ...


@dataclass(slots=True)
class Outcome:
    """Until its status is known, a turn counts as refused, by the server or because the request is invalid."""

    status: str = REFUSED


@dataclass(eq=False)
class Ledger:
    """One turn, whose answer this is, and the two places where it is recorded. `later`: nobody waits for it.

    `surface`: where the answer is used. `priority`: the class in which its turns are served: the one that the request
    asks for, within those of its credential and its surface. `due`: when the first token is due by the target of the
    surface, and the time per token after it; none in the background.
    """

    services: RunServices
    principal: Principal
    trace: Trace
    answer: Named
    later: bool = False
    surface: str = field(init=False)
    priority: Priority = field(init=False)
    due: Due = field(init=False)
    _policy: Surface = field(init=False)

    def __post_init__(self) -> None:
        asked = self.answer.request.priority(watched=self.principal.is_watching)
        asked = Priority.BATCH if self.later else asked
        self.surface = self._surface(asked)
        self._policy = self.services.surfaces.get(self.surface, NO_POLICY)
        self.priority = self._policy.capped(max(asked, self.principal.best_class))
        self.due = self._due()

    def _surface(self, asked: Priority) -> str:
        """As the request or its agent says; otherwise `chat` for a browser and `embedded` for a program, or `batch` for
        the lowest priority class."""
        services, named = self.services, self.answer.request.options.get(SURFACE)
        if named is not None and named in services.surface_names:
            return named
        if by_agent := services.agent_registry.of(self.answer.model).surface:
            return by_agent
        if asked is Priority.BATCH and BATCH in services.surfaces:
            return BATCH
        return "chat" if self.principal.is_watching else "embedded"

    def _due(self) -> Due:
        target = self.services.targets.by_surface.get(self.surface)
        if target is None or "background" in self.trace.attributes:
            return NO_DEADLINE
        said = self.answer.request.options.get(LATE)
        waits = self._waits if said not in (REFUSE, WAIT) else said == WAIT
        return Due(
            self.trace.start_ns + int(target.ttft_ms * 1e6) if target.ttft_ms < inf else None,
            waits,
            target.tpot_ms / 1e3 if target.tpot_ms < inf else None,
        )

    @property
    def _waits(self) -> bool:
        late = self._policy.late
        return self.services.waits if late is None else late == WAIT

    def applied(self, turn: Turn) -> Turn:
        """The turn in its class, and within the limits of its surface and of this worker. Call this last."""
        if turn.arm is not None and not turn.only_reads:  # it has no answer to judge
            note_arm(self.trace, turn.arm)
        turn = self._policy.applied(turn)
        limits = turn.limits.capped(self.services.caps, Owner.SERVER)
        # Only clients that ask to wait are told their place: others do not expect an event of ours.
        waits = self.answer.request.options.get(LATE) == WAIT and "background" not in self.trace.attributes
        return changed(turn, limits=limits, priority=self.priority, due=self.due, reports_position=waits)

    def count(self, held: ExitStack) -> None:
        """Count the request against the limits of its key. The tokens that it is expected to take are held until the
        stack is closed. Raises ApiError 429."""
        if self.principal.bounds is None:
            return
        self.services.daily_budgets.check(self.principal)
        taken = self.services.rates.take(self.principal, monotonic())
        held.callback(lambda: self.services.rates.give_back(self.principal, taken, monotonic()))

    @contextmanager
    def entering(self, turns: int = 1) -> Iterator[ExitStack]:
        """Admit the turns, which are prepared in the block; each holds a place until the stack is closed. What fails in
        the block is recorded as one turn. Raises ApiError, Late."""
        services, tenant_id = self.services, self.principal.tenant_id
        with ExitStack() as places:
            try:
                self.count(places)
                for model in self._expected:
                    model.expect(self.due, salt=str(tenant_id), priority=self.priority)
                for _ in range(turns):
                    places.enter_context(services.admission.turn(tenant_id, waited=self.priority < Priority.BATCH))
                yield places
            except (ClientGone, asyncio.CancelledError):
                self.record("cancelled")
                raise
            except Exception as error:
                self.record(refusal(error))
                raise

    @property
    def _expected(self) -> list[LanguageModel]:
        """The model that will answer, where that is known before the turn is prepared."""
        model_registry, named = self.services.model_registry, self.answer.model
        named = self.services.agent_registry.of(named).model or named
        models = named_by(model_registry.route(named))
        return [model_registry.candidates[models[0]].model] if len(models) == 1 and self._policy.model is None else []

    @property
    def _answered_by(self) -> str:
        """The model of the last step; without steps, the model that was requested."""
        return str(self.trace.attributes.get("firsttoken.model") or self.services.model_of(self.answer.model).name)

    def payload(self, status: str) -> dict[str, Any]:
        """End the trace and return its public form. Nothing is added to it afterwards."""
        self.trace.finish()
        return self._record(status).payload()

    def record(self, status: str) -> None:
        """End the trace, if it has not ended, and hand it to telemetry."""
        record = self._record(status)
        self.services.telemetry.record(record)
        self.services.canaries.note(record)
        if self.principal.bounds is not None:  # else nothing is charged
            self.services.daily_budgets.charge(self.principal, record.taken.cost)
            self.services.rates.charge(self.principal, record.tokens, monotonic())

    @contextmanager
    def recording(self) -> Iterator[Outcome]:
        """Record the turn at the end of the block, in whatever way that ends."""
        outcome = Outcome()
        try:
            yield outcome
        except (ClientGone, asyncio.CancelledError):
            outcome.status = "cancelled"
            raise
        except Exception as error:
            outcome.status = refusal(error) if outcome.status == REFUSED else outcome.status
            raise
        finally:
            self.record(outcome.status)

    def _record(self, status: str) -> TurnRecord:
        trace, surface = self.trace, self.surface
        ttft, tpot = ttft_ms(trace), tpot_ms(trace)
        in_time = self.services.targets.met(surface, status, ttft, tpot, ttfa_ms(trace))
        return TurnRecord(
            trace,
            self.principal.tenant_id,
            status,
            surface,
            self._answered_by,
            self.answer.id,
            self.answer.request.conversation_id,
            ttft,
            tpot,
            None if "firsttoken.prewarm" in trace.attributes else in_time,  # only read, as the request wanted
            self.services.agent_registry.name_of(self.answer.model),
            self.principal.subject if self.principal.via == "api_key" else "",
        )
