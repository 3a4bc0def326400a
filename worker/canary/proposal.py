"""Validates a canary that an operator wants to start. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from worker.canary.verdict import MEASURES

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
