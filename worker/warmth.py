"""Prompts that are prefilled ahead of their question, and the limit of how many a tenant may have."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from inference.core import Generation

# A user types in one conversation at a time; a program that warms many must not keep the model busy without need.
TENANT_MAX = 4
# Typing starts right after the focus, and each request costs a query.
PAUSE_S = 1.0

# A tenant's conversation; None for one that does not exist yet.
Place: TypeAlias = tuple[UUID, str | None]


@dataclass(frozen=True, slots=True)
class _Reading:
    began_s: float
    generation: Generation | None = None

    @property
    def counts(self) -> bool:
        """It is in progress, or has just started."""
        goes_on = self.generation is not None and self.generation.finish is None
        return goes_on or time.monotonic() - self.began_s < PAUSE_S


class Warmth:
    """Limits prefills ahead of questions. Not thread-safe: for the event loop only."""

    def __init__(self) -> None:
        self._readings: dict[Place, _Reading] = {}

    async def read(self, place: Place, start: Callable[[], Awaitable[Generation | None]]) -> bool:
        """Start to prefill, unless it has started or the tenant is at its limit. False: nothing is prefilled."""
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
