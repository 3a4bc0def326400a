"""Who is asking, once authentication has decided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias
from uuid import UUID

from agents.definition import Bounds
from agents.turn import Turn

Via: TypeAlias = Literal["api_key", "jwt", "session"]

OPERATOR = "operator"  # may see the latencies of every tenant


@dataclass(frozen=True, slots=True)
class Principal:
    tenant_id: UUID
    subject: str  # key id, JWT subject or session id: for logs and traces, never a secret
    scopes: frozenset[str]
    via: Via
    bounds: Bounds | None = None  # of every turn

    def bounded(self, turn: Turn) -> Turn:
        """The turn, its limits lowered to the bounds of the credential. To be called after the agent is applied, which
        may raise limits above the defaults.
        """
        if self.bounds is None:
            return turn
        limits = turn.limits.capped(self.bounds.caps)
        sampling = replace(turn.sampling, max_tokens=min(turn.sampling.max_tokens, limits.tokens))
        return replace(turn, limits=limits, sampling=sampling)

    @property
    def is_watching(self) -> bool:
        """Whether a person sits in front of the answer: people use browser sessions, programs the rest."""
        return self.via == "session"

    @property
    def is_operator(self) -> bool:
        return OPERATOR in self.scopes
