"""The canaries of this worker: which agent answers a conversation, and the outcome of its answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import UUID

from agents.agent_registry import AgentRegistry
from agents.definition import Definition
from agents.message import Item, Message
from agents.turn import Arm, Turn
from inference.changed import changed
from inference.trace import Trace
from migrations.pool import DATABASE_AWAY
from worker.auth.audit import WORKER, Actor
from worker.telemetry.canary.trial import DECIDED_IN, Canary, State, canary_report
from worker.telemetry.canary.verdict import Answer, Decision, Vote, judge

if TYPE_CHECKING:
    from worker.lifecycle.supervisor import Supervised, Supervisor, Well
    from worker.runs.record import TurnRecord
    from worker.telemetry.canary.store import CanaryStore
    from worker.telemetry.canary.trial import Proposal

T = TypeVar("T")
# With the id of the canary and the digest of the conversation.
Waiting: TypeAlias = deque[tuple[UUID, str, T]]

log = logging.getLogger("firsttoken.canary")

SYNC_S = 2.0  # until all workers know a decision of one of them, or of a person
SILENT_S = 60.0
ACCOUNT_S = 2.0
CLOSE_S = 2.0
WAITING_MAX = 4096  # answers of a hundred bytes each, while the database is unavailable
JUDGED_PER_S = 500  # answers: a long canary is judged less often
SUFFERED = ("failed", "refused", "invalid")  # including errors that only the treatment makes of a valid request
UNJUDGED = ("cancelled",)
THUMBS = {"up": 0.0, "down": 1.0}  # as a harm


@dataclass(frozen=True, slots=True)
class Chosen:
    """The agent of a conversation, and its arm if it takes part in a canary."""

    definition: Definition
    arm: Arm | None = None

    def applied(self, turn: Turn) -> Turn:
        return changed(self.definition.applied(turn), arm=self.arm)


class Canaries:
    """Without a store there are no canaries. `auditor` returns the tenant whose audit log records the changes."""

    def __init__(self, store: CanaryStore | None = None, auditor: Callable[[], Awaitable[UUID]] | None = None) -> None:
        self._store = store
        self._auditor = auditor
        self._live: Mapping[str, Canary] = {}
        self._waiting: Waiting[Answer] = deque(maxlen=WAITING_MAX)
        self._voted: Waiting[Vote] = deque(maxlen=WAITING_MAX)
        self._judged_again_at: dict[str, float] = {}  # of those that are live
        self._lacking: set[str] = set()
        self._task: Supervised | None = None
        self._accounts: dict[UUID, tuple[Canary, float, dict[str, Any]]] = {}  # until when they are fresh enough

    def start(self, supervisor: Supervisor) -> None:
        self._task = supervisor.start("canaries", self._follow, silent_s=SILENT_S)

    async def close(self) -> None:
        """Stop after storing the outcome of the last answers, once."""
        if self._task is not None:
            await self._task.stop()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._store_waiting()
        except DATABASE_AWAY as error:
            log.warning("the results of the last canary answers are lost: %r", error)

    def choose(
        self, usual: Definition, agent_registry: AgentRegistry, model: str, tenant_id: UUID, conversation: str
    ) -> Chosen:
        """The agent that the model of a request selects, or the one on trial in its place."""
        canary = self._live.get(agent_registry.name_of(model))
        if canary is None:
            return Chosen(usual)
        treatment = agent_registry.agents.get(canary.treatment)
        if treatment is None:
            self._lacks(canary)
            return Chosen(usual)
        arm = canary.arm(tenant_id, conversation)
        return Chosen(treatment if arm.treated else usual, arm)

    def note(self, record: TurnRecord) -> None:
        """Take a finished turn. Costs microseconds, and nothing without a canary."""
        arm = told_arm(record.trace)
        canary = self._running(arm)
        if arm is None or canary is None or record.status in UNJUDGED:
            return
        computed = record.prompt.total - record.prompt.cached + record.output_tokens
        late = None if record.within_target is None else not record.within_target
        failed = record.status in SUFFERED
        declined = record.trace.attributes.get("firsttoken.declined")
        answer = Answer(
            *(arm.treated, failed, late, record.ttft_ms, record.tpot_ms, computed),
            declined=declined if isinstance(declined, bool) else None,
            cost=record.taken.cost or None,
        )
        self._waiting.append((canary.id, arm.unit, answer))

    def rate(self, attributes: Mapping[str, Any], rating: str | None) -> None:
        """Take the rating of an answer whose trace has these attributes. Later ratings do not count."""
        arm = arm_in(attributes)
        canary = self._running(arm)
        if arm is not None and canary is not None and rating in THUMBS:
            self._voted.append((canary.id, arm.unit, Vote(arm.treated, "thumbs_down", THUMBS[rating])))

    async def accounts(self) -> list[dict[str, Any]]:
        """The reports of live canaries. The more expensive a comparison, the less often it is updated."""
        return [await self._account(canary) for canary in list(self._live.values())]

    async def begin(self, proposal: Proposal, by: Actor) -> dict[str, Any]:
        """Start it on its share of conversations, here at once and elsewhere within seconds. Raises AlreadyExists."""
        assert self._store is not None and self._auditor is not None
        canary = await self._store.start(proposal, by, await self._auditor())
        await self._learn()
        return await self._account(canary)

    async def decide(self, name: str, after: State, by: Actor) -> bool | None:
        """Whether a person's decision was valid in the canary's state; None if there is no such canary."""
        assert self._store is not None and self._auditor is not None
        canary = await self._store.named(name)
        if canary is None:
            return None
        if canary.state not in DECIDED_IN[after]:
            return False
        done = await self._store.change(name, canary.state, after, "by a person", by, await self._auditor())
        await self._learn()
        return done

    def _running(self, arm: Arm | None) -> Canary | None:
        """The canary of this arm, while its answers count."""
        running = (each for each in self._live.values() if each.state is State.RUNNING)
        return next((each for each in running if arm and each.name == arm.canary), None)

    async def _learn(self) -> None:
        assert self._store is not None
        self._live = {each.agent: each for each in await self._store.live()}
        names = {each.name for each in self._live.values()}
        self._judged_again_at = {name: at for name, at in self._judged_again_at.items() if name in names}

    async def _account(self, canary: Canary) -> dict[str, Any]:
        assert self._store is not None
        known = self._accounts.get(canary.id)
        if known is None or known[0].state is not canary.state or monotonic() >= known[1]:
            evidence = await self._store.evidence(canary)
            told = await asyncio.to_thread(canary_report, canary, evidence)
            known = (canary, monotonic() + ACCOUNT_S + len(evidence.answers) / JUDGED_PER_S, told)
            live = {each.id for each in self._live.values()}
            self._accounts = {id: told for id, told in self._accounts.items() if id in live} | {canary.id: known}
        return known[2]

    async def sync(self) -> None:
        """Store the outcomes of recent answers, judge, and load the current canaries."""
        heard = await self._store_waiting()
        for canary in self._live.values():
            if canary.id in heard:
                await self._judge(canary)
        await self._learn()

    async def _store_waiting(self) -> set[UUID]:
        """Returns the canaries that had something to store."""
        assert self._store is not None
        answers, self._waiting = self._waiting, deque(maxlen=WAITING_MAX)
        votes, self._voted = self._voted, deque(maxlen=WAITING_MAX)
        try:
            if answers:
                await self._store.add(answers)
            if votes:
                await self._store.vote(votes)
        except BaseException:
            self._waiting = deque((*answers, *self._waiting), WAITING_MAX)  # adding one again has no effect
            self._voted = deque((*votes, *self._voted), WAITING_MAX)
            raise
        return {canary_id for canary_id, _, _ in (*answers, *votes)}

    def _lacks(self, canary: Canary) -> None:
        if canary.name not in self._lacking:
            self._lacking.add(canary.name)
            log.warning("canary %s: this worker has no agent %s and does not take part", canary.name, canary.treatment)

    async def _judge(self, canary: Canary) -> None:
        assert self._store is not None and self._auditor is not None
        if canary.state is not State.RUNNING or monotonic() < self._judged_again_at.get(canary.name, 0.0):
            return
        evidence = await self._store.evidence(canary)
        verdict = await asyncio.to_thread(judge, evidence, canary.margins)
        self._judged_again_at[canary.name] = monotonic() + len(evidence.answers) / JUDGED_PER_S
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
    return arm_in(trace.attributes)


def arm_in(attributes: Mapping[str, Any]) -> Arm | None:
    """From the attributes of a trace."""
    if "canary" not in attributes:
        return None
    treated = attributes["canary_arm"] == "treatment"
    return Arm(str(attributes["canary"]), treated, str(attributes["canary_unit"]))


def first_question(items: Sequence[Item]) -> str:
    """What identifies a conversation whose client resends it in full each time: its first question."""
    return next((item.text for item in items if isinstance(item, Message) and item.role == "user"), "")
