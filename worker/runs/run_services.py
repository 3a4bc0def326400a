"""What a turn needs of the worker while it runs; built once at start and never replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agents.roster import Roster
from agents.surface import Surface
from worker.aliases import Aliases
from worker.auth.day_budget import DayBudgets
from worker.runs.rate_limits import RateLimits
from worker.supervisor import Supervisor

if TYPE_CHECKING:
    from agents.agent import Agent
    from agents.store import ConversationStore, ResponseStore
    from inference.core import LanguageModel
    from worker.attachments import Attachments
    from worker.auth.authenticator import Authenticator
    from worker.auth.seals import Seals
    from worker.goodput import Targets
    from worker.runs.admission import Admission
    from worker.runs.claims import Claims
    from worker.runs.idempotency_store import IdempotencyStore
    from worker.runs.presence import Presence
    from worker.runs.queue_store import QueueStore
    from worker.runs.running_store import RunningStore
    from worker.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """`running` stores the responses in progress with their events, `queue` those of the background that wait."""

    agent: Agent
    model: LanguageModel
    conversations: ConversationStore
    responses: ResponseStore
    running: RunningStore
    queue: QueueStore
    idempotency: IdempotencyStore
    claims: Claims
    presence: Presence
    attachments: Attachments
    seals: Seals
    authenticator: Authenticator
    admission: Admission
    telemetry: Telemetry
    targets: Targets
    surfaces: Mapping[str, Surface] = field(default_factory=dict)
    waits: bool = False  # whether requests wait that do not say what to do if they will be late
    roster: Roster = field(default_factory=Roster)
    aliases: Aliases = field(default_factory=Aliases)
    rates: RateLimits = field(default_factory=RateLimits)
    day_budgets: DayBudgets = field(default_factory=DayBudgets)
    supervisor: Supervisor = field(default_factory=Supervisor)

    @property
    def surface_names(self) -> list[str]:
        """Those that a request may name."""
        return list(dict.fromkeys([*self.targets.by_surface, *self.surfaces]))
