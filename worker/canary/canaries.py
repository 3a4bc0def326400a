"""What is on trial at this worker: which agent answers a conversation, and what became of it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID

from agents.definition import Definition
from agents.message import Item, Message
from agents.roster import Roster
from agents.turn import Arm, Turn
from inference.trace import Trace
from worker.auth.audit import WORKER
from worker.canary.account import account_of
from worker.canary.trial import Canary, State
from worker.canary.verdict import Answer, Decision, judge

if TYPE_CHECKING:
    from worker.canary.store import CanaryStore
    from worker.runs.record import TurnRecord
    from worker.supervisor import Supervised, Supervisor, Well

log = logging.getLogger("firsttoken.canary")

SYNC_S = 2.0  # until all workers know what one of them, or a person, decided
SILENT_S = 60.0
ACCOUNT_S = 2.0
WAITING_MAX = 4096  # answers of a hundred bytes each, while the database is away
JUDGED_PER_S = 500  # answers: a long canary is judged less often
SUFFERED = ("failed", "refused", "invalid")  # also what only the treatment makes of a valid request
UNJUDGED = ("cancelled",)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The agent of a conversation, and its arm if it takes part in a canary."""

    definition: Definition
    arm: Arm | None = None

    def applied(self, turn: Turn) -> Turn:
        return replace(self.definition.applied(turn), arm=self.arm)


class Canaries:
    """Without a store nothing is ever on trial. `auditor` gives the tenant whose audit log has the changes."""

    def __init__(self, store: CanaryStore | None = None, auditor: Callable[[], Awaitable[UUID]] | None = None) -> None:
        self._store = store
        self._auditor = auditor
        self._live: Mapping[str, Canary] = {}
        self._waiting: deque[tuple[UUID, str, Answer]] = deque(maxlen=WAITING_MAX)
        self._judged_at: dict[str, float] = {}
        self._lacking: set[str] = set()
        self._accounts: dict[UUID, tuple[Canary, float, dict[str, Any]]] = {}  # until when they are good enough

    def start(self, supervisor: Supervisor) -> Supervised:
        return supervisor.start("canaries", self._follow, silent_s=SILENT_S)

    def choose(self, usual: Definition, roster: Roster, model: str, tenant_id: UUID, conversation: str) -> Chosen:
        """What the model of a request selects as usual, or what is tried in its place."""
        canary = self._live.get(roster.name_of(model))
        if canary is None:
            return Chosen(usual)
        treatment = roster.agents.get(canary.treatment)
        if treatment is None:
            self._lacks(canary)
            return Chosen(usual)
        arm = canary.arm(tenant_id, conversation)
        return Chosen(treatment if arm.treated else usual, arm)

    def note(self, record: TurnRecord) -> None:
        """Take a finished turn. Costs microseconds, and nothing where nothing is on trial."""
        arm = told_arm(record.trace)
        canary = next((each for each in self._live.values() if arm and each.name == arm.canary), None)
        if arm is None or canary is None or canary.state is not State.RUNNING or record.status in UNJUDGED:
            return
        computed = record.prompt.total - record.prompt.cached + record.output_tokens
        late = None if record.within_target is None else not record.within_target
        failed = record.status in SUFFERED
        answer = Answer(arm.treated, failed, late, record.ttft_ms, record.tpot_ms, computed)
        self._waiting.append((canary.id, arm.unit, answer))

    async def accounts(self) -> list[dict[str, Any]]:
        """Of those that are live. What takes long to compare is compared seldom."""
        return [await self._account(canary) for canary in list(self._live.values())]

    async def _account(self, canary: Canary) -> dict[str, Any]:
        assert self._store is not None
        known = self._accounts.get(canary.id)
        if known is None or known[0].state is not canary.state or monotonic() >= known[1]:
            answers = await self._store.answers(canary)
            told = await asyncio.to_thread(account_of, canary, answers)
            known = (canary, monotonic() + ACCOUNT_S + len(answers) / JUDGED_PER_S, told)
            live = {each.id for each in self._live.values()}
            self._accounts = {id: told for id, told in self._accounts.items() if id in live} | {canary.id: known}
        return known[2]

    async def sync(self) -> None:
        """Store what became of the answers since, judge, and learn what is on trial."""
        assert self._store is not None
        answers = list(self._waiting)
        if answers:
            await self._store.add(answers)
            for _ in answers:
                self._waiting.popleft()
        for canary in self._live.values():
            if any(canary.id == canary_id for canary_id, _, _ in answers):
                await self._judge(canary)
        self._live = {each.agent: each for each in await self._store.live()}

    def _lacks(self, canary: Canary) -> None:
        if canary.name not in self._lacking:
            self._lacking.add(canary.name)
            log.warning("canary %s: this worker has no agent %s, and takes no part", canary.name, canary.treatment)

    async def _judge(self, canary: Canary) -> None:
        assert self._store is not None and self._auditor is not None
        if canary.state is not State.RUNNING or monotonic() < self._judged_at.get(canary.name, 0.0):
            return
        answers = await self._store.answers(canary)
        verdict = await asyncio.to_thread(judge, answers, canary.margins)
        self._judged_at = {canary.name: monotonic() + len(answers) / JUDGED_PER_S}
        if verdict.decision is not Decision.ROLL_BACK:
            return
        auditor = await self._auditor()
        if await self._store.change(canary.name, State.RUNNING, State.ROLLED_BACK, verdict.reason, WORKER, auditor):
            log.warning("canary %s is rolled back: %s", canary.name, verdict.reason)

    async def _follow(self, well: Well) -> None:
        while True:
            await self.sync()
            well()
            await asyncio.sleep(SYNC_S)


def note_arm(trace: Trace, arm: Arm) -> None:
    kind = "treatment" if arm.treated else "control"
    trace.attributes.update(canary=arm.canary, canary_arm=kind, canary_unit=arm.unit)


def told_arm(trace: Trace) -> Arm | None:
    told = trace.attributes
    if "canary" not in told:
        return None
    return Arm(str(told["canary"]), told["canary_arm"] == "treatment", str(told["canary_unit"]))


def first_words(items: Sequence[Item]) -> str:
    """What a conversation is known by that its client sends whole each time: its first question."""
    return next((item.text for item in items if isinstance(item, Message) and item.role == "user"), "")
