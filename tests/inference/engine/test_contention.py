"""Whatever happens to the requests beside it, an answer is that of an undisturbed run, and the highest class gets on.

Requests of all classes come and share beginnings, are cancelled, run out of time or draft; steps fail, states do not
fit, host memory is tight, and conversations come back from disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from hypothesis import Phase as Stage
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.config import EngineConfig
from inference.engine.scheduler import YIELDS_MAX
from inference.engine.step import Plan
from inference.generation import Finish, Priority
from inference.kvcache.host_cache import Entry
from inference.request import Request
from tests.inference.machine import CONFIG, CONTEXT, DRAFTING, VOCABULARY, Machine, expected, request
from tests.scripted import ScriptedBackend

POISON = VOCABULARY + 1
ALONE = 1000  # added to a cell
# Without making a failure smaller: that takes minutes, and a test may take two.
STAGES = (Stage.explicit, Stage.reuse, Stage.generate)
# Room for two conversations: 4 bytes a token. It is too little for a checkpoint, whose tokens take 44 bytes each.
TIGHT = replace(CONFIG, parked_bytes_max=1000, prefill_tokens_first=16)
CRAMPED = replace(TIGHT, parallel=2, resident=0)
# Where rows are dear, a tenant may have so many steps to itself between two with the rows of all: in 0.1 s, or as long
# as one with sixteen rows of prompt takes.
STEP_S, ROW_S, STILL_MAX = 0.03, 0.005, 4
CONFIGS = [TIGHT, CRAMPED, replace(DRAFTING, parked_bytes_max=1000), replace(TIGHT, parked_bytes_max=60_000)]


class Incident(StrEnum):
    """What happens beside an arrival."""

    NONE = "none"
    CANCEL = "cancel"  # of somebody who came before
    DISK = "disk"  # its beginning was read from there
    STATE = "state"  # what was read does not fit
    STEP = "step"  # the next one fails


class Arrival(NamedTuple):
    """A prompt that begins like all of its family, or goes on where an earlier answer ended."""

    family: int
    shared: int  # tokens of it
    own: list[int]
    max_tokens: int
    tenant: str
    priority: Priority
    exact: bool
    patience: int | None  # steps until its deadline
    steps: int  # until the next one comes
    incident: Incident
    ago: int  # who is cancelled or continued: the one who came so many before
    follows: bool

    def request(self, machine: Machine, earlier: Request | None) -> Request:
        beginning = [(n * (self.family + 2) + n // 3) % VOCABULARY for n in range(self.shared)]
        if self.follows and earlier and len(earlier.tokens) < CONTEXT / 2 and POISON not in earlier.prompt:
            beginning = earlier.tokens
        exact = self.exact and machine.backend.rewinds
        asked = request([*beginning, *self.own], self.max_tokens, self.tenant, self.priority, exact=exact)
        asked.deadline_ns = None if self.patience is None else machine.clock + self.patience
        asked.boundaries = (self.shared, len(beginning))
        return asked


arrivals = st.lists(
    st.builds(
        Arrival,
        family=st.integers(0, 1),
        shared=st.sampled_from([0, 40, 100, 200]),
        own=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)
        | st.sampled_from([[1], [2], [3], [1, POISON]]),
        max_tokens=st.integers(1, 30),
        tenant=st.sampled_from(["a", "a", "b"]),
        priority=st.sampled_from(Priority),
        exact=st.booleans(),
        patience=st.sampled_from([None, None, None, None, 0, 5, 30]),
        steps=st.sampled_from([0, 1, 3, 9]),
        incident=st.sampled_from([*[Incident.NONE] * 8, *Incident]),
        ago=st.integers(1, 4),
        follows=st.booleans(),
    ),
    min_size=12,
    max_size=30,
)


class Telling(ScriptedBackend):
    """Its cells tell which of them were computed in a row alone."""

    def _compute(self, chunk: Chunk) -> list[NDArray[np.float32]]:
        rows = super()._compute(chunk)
        if len(chunk.tokens) == 1:
            self.cells[chunk.slot][-1] += ALONE
        return rows

    def _logits(self, prefix: Sequence[int]) -> NDArray[np.float32]:
        return super()._logits([cell % ALONE for cell in prefix])

    def _agree(self, state: list[int], cells: list[int]) -> bool:
        return [cell % ALONE for cell in state] == [cell % ALONE for cell in cells]


class Watched(Machine):
    """Checks every plan before it is carried out, and the cells afterwards."""

    def __init__(self, config: EngineConfig, *, rewinds: bool, dear: bool) -> None:
        costs = (STEP_S, ROW_S) if dear else (0.0, 0.0)
        super().__init__(config, rewinds=rewinds, device=Telling, step_s=costs[0], row_s=costs[1])
        self._still_max = STILL_MAX if dear else 0
        self.backend.poison = POISON
        self.to_blame = set[Request]()  # if a step fails
        self.stood_still = Counter[Request]()

    def plan(self) -> Plan:
        before = list(self.scheduler.requests)
        running = [r for r in before if r.slot is not None]
        new = {r for r in before if not r.stamps.admitted_ns}
        plan = super().plan()
        self._check_preempted([r for r in running if r.slot is None], [r for r, _ in plan.placements])
        served = {work.request for work in plan.work} | {r for r, _ in plan.placements if r.finish}
        best = min((r.priority for r in before), default=None)
        assert best is None or any(r.priority is best for r in served), "the highest class does not get on"
        self._check_rows(served, [r for r in before if r.decodes])
        self._newcomers = [r for r, _ in plan.placements if r in new]
        self._plan = plan
        return plan

    def _check_rows(self, served: set[Request], streams: Sequence[Request]) -> None:
        before, self.stood_still = self.stood_still, Counter()  # one that lost its slot begins anew
        for stream in streams:
            self.stood_still[stream] = 0 if stream in served else before[stream] + 1
            allowed = YIELDS_MAX * (1 + self._still_max) if stream.priority is Priority.BATCH else self._still_max
            assert self.stood_still[stream] <= allowed, "a stream has no row"

    def step(self) -> list[int]:
        rows = super().step()
        if len(self._plan.work) == 1 or not self.backend.rewinds:
            self.to_blame |= {work.request for work in self._plan.work}
        for number in range(self.backend.slots):
            slot, cells = self.scheduler.slots[number], self.backend.cells.get(number, [])
            assert slot.live or [cell % ALONE for cell in cells[: slot.computed]] == slot.tokens
        for r in self.scheduler.requests:
            assert r.miss is None or r.miss.cached == r.cached_tokens
            assert r not in self._newcomers or r.cached_tokens <= r.computed, "what was cached was not"
            if r.slot is not None:
                cells = self.backend.cells[r.slot]
                assert [cell % ALONE for cell in cells] == r.tokens[: r.computed]
                assert self.scheduler.slots[r.slot].computed == r.computed
                together = len(r.prompt) if len(r.prompt) > 1 else 0
                as_written = [cell >= ALONE for cell in cells] == [n >= together for n in range(len(cells))]
                assert as_written or not r.exact, "it is read otherwise than it was written"
        return rows

    @staticmethod
    def _check_preempted(gone: list[Request], placed: list[Request]) -> None:
        for priority in Priority:
            losers = sum(r.priority <= priority for r in gone)
            winners = sum(r.priority < priority for r in placed)
            assert losers <= winners, "a place was taken in vain"


def arrive(machine: Machine, requests: list[Request], arrival: Arrival) -> None:
    earlier = requests[-min(arrival.ago, len(requests))] if requests else None
    newcomer = arrival.request(machine, earlier)
    if arrival.incident in (Incident.DISK, Incident.STATE):
        tokens, parked = tuple(newcomer.prompt[:-1]), machine.scheduler.slots.parked
        if parked.wants(tokens, newcomer.scope):
            parked.put(Entry(tokens, newcomer.scope, np.array(tokens, np.int32).view(np.uint8)))
    machine.backend.refuse_next |= arrival.incident is Incident.STATE
    machine.backend.fail_next |= arrival.incident is Incident.STEP
    if arrival.incident is Incident.CANCEL and earlier:
        machine.cancel(earlier)
    requests.append(newcomer)
    machine.add(newcomer)
    for _ in range(arrival.steps):
        machine.step()


def check(r: Request, machine: Watched) -> None:
    assert r.generated == ([] if r.ahead else expected(r)[: len(r.generated)])
    match r.finish:
        case Finish.LENGTH:
            assert POISON not in r.prompt and (r.ahead or len(r.generated) == r.max_tokens)
        case Finish.ERROR:
            assert POISON in r.prompt or r in machine.to_blame
        case _:
            assert r.cancelled or r.deadline_ns is not None or r.ahead


@settings(deadline=None, phases=STAGES)
@given(st.sampled_from(CONFIGS), arrivals, st.booleans(), st.booleans())
def test_every_answer_is_that_of_an_undisturbed_run(
    config: EngineConfig, plan: list[Arrival], rewinds: bool, dear: bool
) -> None:
    machine, requests = Watched(config, rewinds=rewinds, dear=dear), list[Request]()
    for arrival in plan:
        arrive(machine, requests, arrival)
    machine.backend.fail_next = machine.backend.refuse_next = False
    urgent = [r for r in requests if r.finish is None and r.priority is Priority.INTERACTIVE]
    # Half of a step's prompt tokens, but for a single row, are the oldest one's; a stream gets a token in each step.
    steps_of_all = sum(len(r.prompt) / 7 + r.max_tokens + 1 for r in urgent)
    assert machine.finish(*urgent) <= steps_of_all * (1 + STILL_MAX * dear)
    machine.finish(*requests)
    assert machine.scheduler.idle
    for r in requests:
        check(r, machine)
    counted = [r for r in requests if not r.ahead and r.stamps.admitted_ns]
    assert machine.totals["prompt_tokens"] == sum(len(r.prompt) for r in counted)
    assert machine.totals["cached_tokens"] == sum(r.cached_tokens for r in counted)
