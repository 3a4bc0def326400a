"""From a validated request to a response in the making, whichever way it came."""

from __future__ import annotations

from contextlib import ExitStack

from agents.message import Item, new_id
from inference.trace import Trace
from worker.auth.principal import Principal
from worker.checks import check_model
from worker.runs.disconnect import Disconnect
from worker.runs.ledger import Ledger
from worker.runs.run import Run
from worker.runs.turn import hydrate
from worker.services import Services
from worker.wire.dialect import Dialect
from worker.wire.response import ResponseFrame
from worker.wire.response_request import ResponseRequest


async def start(
    services: Services,
    principal: Principal,
    trace: Trace,
    body: ResponseRequest,
    *,
    dialect: Dialect,
    on_disconnect: Disconnect,
    id: str | None = None,
    remembered: tuple[Item, ...] | None = None,
) -> Run:
    """`id` is that of the response, by default a new one; `remembered` what stands before the request, where it need
    not be read. Raises what refuses the request.
    """
    model = check_model(body.model, services)
    frame = ResponseFrame(body, model, id or new_id("resp"), dialect=dialect)
    with ExitStack() as held:
        held.enter_context(services.admission.turn(principal.tenant_id))
        with trace.span("hydrate") as span:
            turn = await hydrate(services, principal, frame, remembered)
            span.attributes["items"] = len(turn.history)
        ledger = Ledger(services, principal, trace, turn.frame.id, turn.conversation_id, model, body.metadata)
        return await services.runs.begin(services, turn, ledger, held.pop_all(), on_disconnect)
