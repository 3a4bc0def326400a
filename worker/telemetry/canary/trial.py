"""One canary: which agent answers which share of whose conversations; how an operator proposes it, and its report."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any
from uuid import UUID

from agents.turn import Arm
from worker.telemetry.canary.verdict import MEASURES, Evidence, findings, judge

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


SHARE_MIN = 0.0001  # of either arm: with less, the limit of stored answers is reached without evidence
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"  # it is part of traces


@dataclass(frozen=True, slots=True)
class Proposal:
    """`agent` is empty for requests that name none. `share` is of conversations, `margins` by measure."""

    name: str
    agent: str
    treatment: str
    share: float
    margins: Mapping[str, float] = field(default_factory=dict)

    def problem(self, agents: Collection[str]) -> tuple[str, str] | None:
        """The invalid field, and why; None if it is valid. `agents` are those of the worker."""
        known = ", ".join(agents) or "none"
        for part, agent in (("agent", self.agent), ("treatment", self.treatment)):
            if agent not in agents and not (part == "agent" and not agent):
                return part, f"there is no agent {agent} in the file of --agents: it has {known}"
        if not SHARE_MIN <= self.share <= 1 - SHARE_MIN:
            return "share", f"the share must be from {SHARE_MIN} to {1 - SHARE_MIN}: otherwise one group is too small"
        if self.agent == self.treatment:
            return "treatment", "the treatment is the agent itself: name another one"
        unknown = next((measure for measure in self.margins if measure not in MEASURES), None)
        if unknown is not None:
            return "margins", f"there is no measure {unknown}: the measures are {', '.join(MEASURES)}"
        return None


def canary_report(canary: Canary, evidence: Evidence) -> dict[str, Any]:
    """As JSON. Takes a second for ten thousand answers."""
    verdict = judge(evidence, canary.margins)
    return {
        "name": canary.name,
        "agent": canary.agent,
        "treatment": canary.treatment,
        "share": round(canary.share, 4),
        "state": canary.state,
        "reason": canary.reason,
        "conversations": {
            "control": evidence.conversations(treated=False),
            "treatment": evidence.conversations(treated=True),
        },
        "verdict": verdict.decision,
        "verdict_reason": verdict.reason,
        "measures": [each.told() for each in findings(evidence, canary.margins)],
    }
