"""One chat completion: its turns, and its answer as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents.turn import Turn
from inference.generation import Priority
from inference.trace import Trace
from worker.auth.principal import Principal
from worker.runs.choice import Choice, whole_of
from worker.runs.ledger import Ledger
from worker.runs.run_services import RunServices
from worker.telemetry.canary.canaries import first_question
from worker.wire.chat_completion import Completion


async def turns_of(ledger: Ledger, completion: Completion) -> list[Turn]:
    """One for each choice. Raises ApiError 400 and 404 naming what cannot be read."""
    services, principal, body = ledger.services, ledger.principal, completion.request
    messages = await services.attachments.read(principal.tenant_id, body.messages, "messages")
    asked = body.model_copy(update={"messages": messages}).turns(principal.tenant_id, watched=principal.is_watching)
    agent = services.choose(completion.model, body.model, principal.tenant_id, first_question(asked[0].input))
    return [ledger.applied(principal.bounded(agent.applied(turn))) for turn in asked]


def choices_of(
    services: RunServices,
    principal: Principal,
    trace: Trace,
    completion: Completion,
    turns: Sequence[Turn],
    priority: Priority | None = None,
) -> list[Choice]:
    """`priority` counts in place of what the request asks for."""
    return [
        Choice.of(services, principal, trace, turn, completion, index, priority) for index, turn in enumerate(turns)
    ]


async def whole(completion: Completion, choices: Sequence[Choice]) -> dict[str, Any]:
    """The completion when all of it is there. Raises what refuses a turn, Interrupted, and ApiError 500."""
    finished = await whole_of(choices)
    told = [narrator.whole(each) for narrator, each in zip(completion.narrators(), finished, strict=True)]
    return completion.whole(told, finished)
