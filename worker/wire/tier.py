"""Service tiers: what a caller asks for with `service_tier`, and the class in which the engine schedules it."""

from __future__ import annotations

from typing import Literal, TypeAlias

from inference.core import Priority

ServiceTier: TypeAlias = Literal["auto", "default", "flex", "priority"]


def tier_used(asked: ServiceTier | None) -> ServiceTier:
    """The tier that the answer names: the choice is the server's where the caller left it open."""
    return "default" if asked in (None, "auto") else asked


def rank_of(asked: ServiceTier | None) -> int:
    """The order in which responses of the background are begun, lowest first."""
    return {"priority": 0, "flex": 2}.get(asked or "default", 1)


def priority_of(asked: ServiceTier | None, *, watched: bool) -> Priority:
    """The class of a turn. `watched`: a person sits in front of it, which counts where the tier says nothing."""
    if asked == "flex":
        return Priority.BATCH
    return Priority.INTERACTIVE if asked == "priority" or watched else Priority.STANDARD
