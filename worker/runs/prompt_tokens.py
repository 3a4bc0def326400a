"""Counts the tokens of a prompt for a client, who may ask exactly because it does not fit any context."""

from __future__ import annotations

from agents.turn import Turn
from inference.errors import TextTooLong
from worker.services import Services


async def prompt_tokens(services: Services, turn: Turn) -> int:
    """Without the passages of a search. A text that is too long for the model counts as a turn in progress, since its
    tokenisation takes a thread a while.

    Raises the errors of `Agent.count`, except TextTooLong, and ApiError if the worker is busy.
    """
    try:
        return await services.agent.count(turn)
    except TextTooLong:
        with services.admission.turn(turn.tenant_id):
            return await services.agent.count_all(turn)
