"""The scheduler against a model of the cells: whatever arrives, is cancelled or shares a prefix, the tokens that come
out are those of an undisturbed run."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.config import EngineConfig
from inference.detokenizer import TextStream
from inference.request import Phase, Request
from inference.sampler import Sampler
from inference.scheduler import Scheduler
from inference.sequence import Finish, Sampling
from inference.testing import ScriptedBackend, scripted_token

VOCABULARY = 5  # small: prompts share beginnings by chance
CONFIG = EngineConfig(parallel=3, resident=2, prefill_tokens_beside_streams=4, prefill_tokens_alone=16)
GREEDY = Sampling(temperature=0)


def request(prompt: list[int], max_tokens: int = 3, salt: str = "") -> Request:
    text = TextStream([b""] * VOCABULARY)
    return Request(prompt, max_tokens, Sampler(GREEDY), text, salt)


class Machine:
    """A scheduler on a scripted device, stepped by hand."""

    def __init__(self, rewinds: bool = True) -> None:
        self.scheduler = Scheduler(CONFIG, rewinds=rewinds)
        self.backend = ScriptedBackend(CONFIG.slots, context=200, rows_max=64, vocabulary=VOCABULARY, rewinds=rewinds)

    def step(self) -> list[int]:
        """Returns the rows of each request in the step."""
        plan = self.scheduler.plan()
        parked = self.scheduler.slots.parked
        for _, p in plan.placements:
            if p.saves:
                parked.put(p.saves.tokens, p.saves.salt, self.backend.save(p.saves.slot))
            if p.restored is not None:
                self.backend.restore(p.slot, parked[p.restored].state)
                self.backend.truncate(p.slot, p.reused)
            elif p.source == p.slot:
                self.backend.truncate(p.slot, p.reused)
            else:
                self.backend.fork(p.source, p.slot, p.reused)
        assert plan.work or self.scheduler.idle, "work is waiting and nothing is done"
        if not plan.work:
            return []
        logits = self.backend.decode(plan.work)
        self.scheduler.computed(plan)
        for row, work in zip(logits, [w for w in plan.work if w.output], strict=True):
            r = work.request
            r.generated.append(r.sampler.draw(row))
            if len(r.generated) == r.max_tokens:
                r.finish = Finish.LENGTH
                self.scheduler.remove(r)
        return [len(work.tokens) for work in plan.work]

    def cancel(self, r: Request) -> None:
        if r.finish is None:
            r.finish = Finish.CANCELLED
            self.scheduler.remove(r)


def expected(r: Request) -> list[int]:
    tokens = list(r.prompt)
    for _ in range(r.max_tokens):
        tokens.append(scripted_token(tokens, VOCABULARY))
    return tokens[len(r.prompt) :]


prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=90)
arrivals = st.lists(
    st.tuples(prompts, st.integers(1, 6), st.sampled_from(["a", "b"]), st.integers(0, 3), st.booleans()), max_size=14
)


@settings(max_examples=300, deadline=None)
@given(arrivals, st.booleans())
def test_output_is_that_of_an_undisturbed_run(plan: list[tuple[list[int], int, str, int, bool]], rewinds: bool) -> None:
    machine, requests = Machine(rewinds), list[Request]()
    for prompt, max_tokens, salt, steps, cancel in plan:
        requests.append(request(prompt, max_tokens, salt))
        machine.scheduler.add(requests[-1])
        for _ in range(steps):
            machine.step()
        if cancel:
            machine.cancel(requests[len(requests) // 2])
    for _ in range(2000):
        if machine.scheduler.idle:
            break
        machine.step()
    assert machine.scheduler.idle
    for r in requests:
        whole = r.generated == expected(r)
        assert whole if r.finish is Finish.LENGTH else r.generated == expected(r)[: len(r.generated)]


def test_a_long_prompt_is_computed_in_bites_beside_running_streams() -> None:
    machine = Machine()
    machine.scheduler.add(request([1], max_tokens=20))
    machine.step()
    machine.scheduler.add(long := request([2, 3] * 20))
    rows = [machine.step() for _ in range(3)]
    assert rows == [[1, 4], [1, 4], [1, 4]]
    assert long.phase is Phase.PREFILL


def test_a_prompt_has_the_machine_to_itself_when_nobody_streams() -> None:
    machine = Machine()
    machine.scheduler.add(request([2, 3] * 20))
    assert machine.step() == [16]


def test_several_short_prompts_share_a_step() -> None:
    machine = Machine()
    for first in (1, 2, 3):
        machine.scheduler.add(request([first] * 4))
    assert machine.step() == [4, 4, 4]


def test_a_stream_gets_its_row_in_every_step() -> None:
    machine = Machine()
    machine.scheduler.add(stream := request([1], max_tokens=10))
    machine.step()
    machine.scheduler.add(request([2] * 50))
    for step in range(2, 6):
        machine.step()
        assert len(stream.generated) == step


def test_no_more_requests_run_than_the_limit() -> None:
    machine = Machine()
    for first in range(5):
        machine.scheduler.add(request([first, first]))
    machine.step()
    assert repr(machine.scheduler) == "<Scheduler 2 waiting | 3 running | <Slots 3 live | 0 resident | 2 empty>>"


def test_a_cancelled_request_leaves_what_it_computed() -> None:
    machine = Machine()
    machine.scheduler.add(first := request([2, 3] * 20))
    machine.step()
    machine.cancel(first)
    machine.scheduler.add(second := request([2, 3] * 20))
    machine.step()
    assert second.reused == 16
