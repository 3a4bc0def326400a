"""Prefills prompts before their question arrives: those of the configuration at start, those that continue answered
questions, and, within a limit per tenant, those of users who are about to ask.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from agents.agent import Agent
from agents.definition import AgentRegistry, Definition
from agents.errors import InvalidTurn
from agents.router import Candidate
from agents.turn import Turn
from inference.errors import EnginesAway, InferenceError, InvalidTemplate
from inference.generation import Generation
from worker.auth.principal import NOBODY
from worker.lifecycle.supervisor import Healthy

# A user types in one conversation at a time; a program that prewarms many must not keep the model busy needlessly.
TENANT_MAX = 4
# Typing starts right after the focus, and each prewarm request costs a query.
PAUSE_S = 1.0
# At start: enough for a small model to prefill the instructions of a dozen agents. A large one continues later.
BEGINNINGS_S = 10.0

# Until the end of an answer is stored and sent: what is read behind it must not delay it, and nobody types faster.
END_S = 0.05

# What the chat page asks with (turn.js) until a person changes its settings: somebody opens it as soon as it can be
# opened, and asks before the model could read the tools.
PAGE = Definition(tools=["calculator", "current_time", "convert_units"])

# A tenant's conversation; None for one that does not exist yet.
Place: TypeAlias = tuple[UUID, str | None]

log = logging.getLogger("firsttoken.warmth")


@dataclass(frozen=True, slots=True)
class _Reading:
    began_s: float
    generation: Generation | None = None

    @property
    def counts(self) -> bool:
        """Whether it is in progress, or has just started."""
        goes_on = self.generation is not None and self.generation.finish is None
        return goes_on or time.monotonic() - self.began_s < PAUSE_S


class PrewarmLimits:
    """Limits prefills ahead of questions. Not thread-safe: for the event loop only."""

    def __init__(self) -> None:
        self._readings: dict[Place, _Reading] = {}

    async def read(self, place: Place, start: Callable[[], Awaitable[Generation | None]]) -> bool:
        """Start a prefill, unless one is running or the tenant is at its limit. Returns False if none is started."""
        self._readings = {each: reading for each, reading in self._readings.items() if reading.counts}
        if place in self._readings or sum(tenant == place[0] for tenant, _ in self._readings) >= TENANT_MAX:
            return False
        began = _Reading(time.monotonic())
        self._readings[place] = began
        try:
            generation = await start()
        except BaseException:
            self._readings.pop(place, None)
            raise
        self._readings[place] = _Reading(began.began_s, generation)
        return generation is not None


async def prefill_shared_prefixes(
    agent: Agent, agent_registry: AgentRegistry, within_s: float = BEGINNINGS_S, only: Candidate | None = None
) -> None:
    """Prefill the instructions and tools of the configuration and of the chat page once for all tenants, so that the
    first question to an agent is as fast as the tenth. `only` restricts this to one model.

    Prefills that take longer continue beside the first requests, below all priority classes, or when a request needs
    them.
    """
    until_s = asyncio.get_running_loop().time() + within_s
    unread = 0
    for name, definition in {"": Definition(), "of the chat page": PAGE, **agent_registry.agents}.items():
        try:
            turn = definition.applied(Turn(NOBODY, ()))
            reading = await agent.share(turn, only)
            async with asyncio.timeout_at(until_s):
                while reading is not None and not await _is_read(reading):
                    reading = await agent.share(turn, only)
        except TimeoutError:
            unread += 1
        except (InvalidTurn, InvalidTemplate) as error:  # its clients get this error
            log.warning("the prompt prefix of agent %s cannot be shared: %s", name, error)
        except InferenceError as error:
            log.warning("the prompt of agent %s was not prefilled: %s", name, error)
    if unread:
        log.info("the prompts of %d agents take longer than %.0f s to prefill: they follow later", unread, within_s)


async def read_answered_questions(agent: Agent, healthy: Healthy) -> None:
    """Prefill, one by one, what the next prompts of answered questions will begin with. Never returns."""
    while True:
        turn = await agent.answered.get()
        await asyncio.sleep(END_S)
        await agent.read_answered(turn)
        healthy()


async def _is_read(reading: Generation) -> bool:
    """Wait for engines that start at the same time as this worker. Returns False to try again."""
    try:
        await reading.stream(lambda _: None)
    except EnginesAway as error:
        await asyncio.sleep(error.retry_after_s)
        return False
    return True
