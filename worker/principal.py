"""Who is asking, once authentication has decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

OPERATOR = "operator"  # may see the latencies of every tenant


@dataclass(frozen=True, slots=True)
class Principal:
    tenant_id: UUID
    subject: str  # key id, JWT subject or session id: for logs and traces, never a secret
    scopes: frozenset[str]
    via: Literal["api_key", "jwt", "session"]

    @property
    def is_watching(self) -> bool:
        """Whether a person sits in front of the answer: people use browser sessions, programs the rest."""
        return self.via == "session"

    @property
    def is_operator(self) -> bool:
        return OPERATOR in self.scopes
