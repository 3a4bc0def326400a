"""What operators ask of canaries."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from worker.telemetry.canary.trial import NAME_PATTERN, Proposal
from worker.wire import limits
from worker.wire.strict import Strict

MEASURES_MAX = 16  # more than are compared
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Agent = Annotated[str, StringConstraints(max_length=limits.KEY_CHARS_MAX)]
Share = Annotated[float, Field(gt=0, lt=1, strict=False)]


class CanaryStart(Strict):
    """Without `agent`, the canary covers requests that name no agent."""

    name: Name
    agent: Agent = ""
    treatment: Agent
    share: Share = 0.1
    margins: Annotated[dict[Agent, Share], Field(max_length=MEASURES_MAX)] = Field(default_factory=dict)

    @property
    def proposal(self) -> Proposal:
        return Proposal(self.name, self.agent, self.treatment, self.share, self.margins)


class CanaryDecision(Strict):
    state: Literal["promoted", "aborted"]
