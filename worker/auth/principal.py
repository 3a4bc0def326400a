"""The authenticated caller: what its credential may be used for, and the limits of an API key, for each turn, its
class, its rates, its cost per day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints

from agents.definition import CLASSES, Bounds, ClassName
from agents.origin import origins_of
from agents.turn import Owner, Turn
from inference.frozen import changed
from inference.generation import Priority
from worker.auth.scope import Scope


def _origins(text: str) -> str:
    origins_of(text)
    return text


class KeyLimits(Bounds):
    """Rates hold for each worker by itself, the cost of a day for all of them. None: no limit."""

    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None  # input and output tokens
    cost_per_day: Annotated[float, Field(gt=0, le=1e12)] | None = None  # in the units of the prices; days of UTC
    best_class: Annotated[ClassName | None, Field(alias="class")] = None
    # Of the origins that the worker allows, those of MCP servers that a request may name, separated by commas.
    mcp_origins: Annotated[str, StringConstraints(max_length=4000), AfterValidator(_origins)] | None = None


NOBODY = UUID(int=0)  # the tenant of the worker's own work

Via: TypeAlias = Literal["api_key", "jwt", "session"]


@dataclass(frozen=True, slots=True)
class Principal:
    tenant_id: UUID
    subject: str  # key id, JWT subject or session id: for logs and traces, never a secret
    scopes: frozenset[Scope]
    via: Via
    bounds: KeyLimits | None = None  # of every turn

    def bounded(self, turn: Turn) -> Turn:
        """The turn with its limits lowered to the bounds of the credential. Call this after the agent is applied, which
        may raise limits above the defaults.
        """
        if self.bounds is None:
            return turn
        return changed(turn, limits=turn.limits.capped(self.bounds.caps, Owner.KEY))

    @property
    def best_class(self) -> Priority:
        """The best priority class that its turns may have."""
        named = self.bounds.best_class if self.bounds else None
        return CLASSES[named] if named else Priority.INTERACTIVE

    @property
    def is_watching(self) -> bool:
        """Whether a person is waiting for the response: people use browser sessions, programs everything else."""
        return self.via == "session"

    @property
    def is_operator(self) -> bool:
        """Whether the caller may see the latencies of every tenant."""
        return Scope.OPS in self.scopes

    @property
    def is_revocable(self) -> bool:
        """Whether the credential may be revoked before it expires. A JWT cannot: it is not stored here."""
        return self.via != "jwt"
