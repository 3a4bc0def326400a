"""One canary: which agent answers which share of whose conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from uuid import UUID

from agents.turn import Arm

UNIT_BYTES = 8
KNOWN_BY_CHARS = 4096  # of a first question: a long document is not hashed on the event loop
_END = 1 << 64


class State(StrEnum):
    RUNNING = "running"
    PROMOTED = "promoted"  # all conversations use the treatment
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"


# What people may decide, and in which states.
DECIDED_IN = {State.PROMOTED: (State.RUNNING,), State.ABORTED: (State.RUNNING, State.PROMOTED)}


@dataclass(frozen=True, slots=True)
class Canary:
    """`agent` is the name of the agent on trial, empty for requests that name none; `treatment` that of the agent which
    answers in its place. `margins` is by the names of measures."""

    id: UUID
    name: str
    agent: str
    treatment: str
    share: float
    margins: Mapping[str, float]
    state: State
    reason: str = ""

    @property
    def is_live(self) -> bool:
        return self.state in (State.RUNNING, State.PROMOTED)

    def arm(self, tenant_id: UUID, conversation: str) -> Arm:
        """The same for all turns of a conversation, on every worker, and independent of other canaries."""
        said = tenant_id.bytes + conversation[:KNOWN_BY_CHARS].encode("utf-8", "surrogatepass")
        digest = blake2b(said, key=self.id.bytes, digest_size=8 + UNIT_BYTES).digest()
        treated = self.state is State.PROMOTED or int.from_bytes(digest[:8]) < self.share * _END
        return Arm(self.name, treated, digest[8:].hex())
