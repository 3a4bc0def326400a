"""The scheduler on a simulated device: how many turns are on time at which rate.

    python -m benchmarks.engine.open_loop.simulated [--rates 0.6 0.8 1] [--slower 1.3] [--ttft-ms 500] [--tpot-ms 50]

Plays the traces of the open loop against the real scheduler on its own clock, so policies can be compared within
seconds and without the noise of a machine. The durations of steps are those measured with the 0.1B model on two cores.
All idle conversations stay in their slots. Prints one line per rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

from benchmarks.engine.open_loop.goodput import Ending, Goodput, Outcome, Targets, judge
from benchmarks.engine.open_loop.sessions import CONTEXT, SYSTEM_TOKENS, Plan, Session, Trace
from inference.config import EngineConfig
from inference.engine.sampler import Sampler
from inference.engine.scheduler import Scheduler
from inference.engine.step import Plan as Step
from inference.generation import Finish, Sampling
from inference.prompt import CacheScope
from inference.request import Request
from inference.tokenizer import TextStream

CONFIG = EngineConfig(Path("simulated"), parallel=16, resident=200, context=CONTEXT, parked_bytes_max=0)
MESSAGE_TOKENS = 22  # of the template around each message
SCOPE = CacheScope("a program")


@dataclass(frozen=True, slots=True)
class Device:
    """Seconds that a step takes. `part_s`: once for each length of prompt chunks, which are computed apart."""

    step_s: float = 0.0042
    row_s: float = 0.0028  # of an answer
    prompt_row_s: float = 0.0012
    part_s: float = 0.002
    slower: float = 1.0  # all of it, by this factor

    def takes_s(self, step: Step) -> float:
        answers = sum(work.request.decodes for work in step.work)
        chunks = [len(work.tokens) for work in step.work if not work.request.decodes]
        seconds = self.step_s + self.row_s * answers if answers else 0.0
        return self.slower * (seconds + self.part_s * len(set(chunks)) + self.prompt_row_s * sum(chunks))


@dataclass(slots=True)
class Talk:
    """A session: which turn is next, and all tokens so far."""

    session: Session
    tokens: list[int]
    due_s: float
    turn: int = 0
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.turn == len(self.session.turns)


class Simulation:
    """Runs one trace. Tokens are numbers that never repeat, except for those of the system prompts."""

    def __init__(self, trace: Trace, targets: Targets, device: Device, scheduler: Scheduler) -> None:
        self._trace, self._targets, self._device, self._scheduler = trace, targets, device, scheduler
        self._now_s = 0.0
        self._numbers = count(sum(SYSTEM_TOKENS) + MESSAGE_TOKENS * len(SYSTEM_TOKENS))
        systems = [self._new(tokens + MESSAGE_TOKENS) for tokens in SYSTEM_TOKENS]
        self._talks = [Talk(each, list(systems[each.system]), each.start_s) for each in trace.sessions]
        self._waiting = [(talk.due_s, place, talk) for place, talk in enumerate(self._talks)]  # a heap
        self._running: dict[Request, Talk] = {}

    def run(self) -> list[Outcome]:
        """The outcomes of the judged turns."""
        judged = [talk for talk in self._talks if self._trace.judges(talk.session)]
        while not all(talk.is_over for talk in judged):
            self._send()
            self._step()
        return [outcome for talk in judged for outcome in talk.outcomes]

    def _new(self, tokens: int) -> list[int]:
        return [next(self._numbers) for _ in range(tokens)]

    def _send(self) -> None:
        """Submit what is due; without anything to do, the clock goes on to the next turn."""
        if self._scheduler.idle:
            self._now_s = max(self._now_s, self._waiting[0][0])
        while self._waiting and self._waiting[0][0] <= self._now_s:
            talk = heappop(self._waiting)[2]
            turn = talk.session.turns[talk.turn]
            talk.tokens += self._new(turn.prompt_tokens + MESSAGE_TOKENS)
            request = Request(talk.tokens, turn.answer_tokens, Sampler(Sampling()), TextStream([]), SCOPE)
            request.stamps.submitted_ns = 1 + int(talk.due_s * 1e9)
            request.due_ns = int((talk.due_s + self._targets.ttft_s) * 1e9)
            request.pace_s = self._targets.tpot_s
            uncached = len(talk.tokens) - self._scheduler.slots.longest(talk.tokens, SCOPE)
            self._scheduler.load.add(request, max(1, uncached))
            self._scheduler.add(request)
            self._running[request] = talk

    def _step(self) -> None:
        scheduler = self._scheduler
        now_ns = int(self._now_s * 1e9)
        step = scheduler.fill(scheduler.admit(now_ns), now_ns)
        scheduler.begin(step, now_ns)
        took_s = self._device.takes_s(step)
        self._now_s += took_s
        scheduler.computed(step.work)
        for work in step.work:
            if work.outputs:
                self._answer(work.request)
        scheduler.record_step(step, took_s)
        if step.cost_follows_rows(parted=True):
            scheduler.cost.observe(step.rows, took_s)

    def _answer(self, request: Request) -> None:
        request.stamps.first_token_ns = request.stamps.first_token_ns or int(self._now_s * 1e9)
        request.generated += self._new(1)
        if len(request.generated) == request.max_tokens:
            request.finish = Finish.LENGTH
            self._scheduler.load.remove(request)
            self._scheduler.remove(request)
            self._end(request, self._running.pop(request))

    def _end(self, request: Request, talk: Talk) -> None:
        first_s, tokens = request.stamps.first_token_ns / 1e9, len(request.generated)
        talk.outcomes.append(Outcome(Ending.COMPLETE, talk.due_s, first_s, self._now_s, tokens))
        talk.tokens = request.tokens
        talk.turn += 1
        if not talk.is_over:
            talk.due_s = self._now_s + talk.session.turns[talk.turn].think_s
            heappush(self._waiting, (talk.due_s, talk.session.number, talk))


def simulated(
    rate: float, plan: Plan, device: Device, scheduler: Callable[[], Scheduler] = lambda: Scheduler(CONFIG)
) -> Goodput:
    """The goodput at a rate, over all rounds of the plan. `scheduler`: makes a new one."""
    traces = [plan.trace(rate, number) for number in range(plan.rounds)]
    outcomes = [each for trace in traces for each in Simulation(trace, plan.targets, device, scheduler()).run()]
    return judge(outcomes, plan.targets, plan.rounds * plan.window_s(rate))


def lines(rates: list[float], plan: Plan, device: Device) -> Iterator[str]:
    for rate in rates:
        judged = simulated(rate, plan, device)
        yield (
            f"{rate:.3g} sessions/s: {judged.share:.1%} of {judged.turns} turns on time, "
            f"TTFT p95 {judged.ttft_p95_ms:.0f} ms, TPOT p95 {judged.tpot_p95_ms:.0f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.6, 0.8, 1.0], help="sessions per second")
    parser.add_argument("--rounds", type=int, default=6, help="traces per rate (default 6)")
    parser.add_argument("--sessions", type=int, default=96, help="sessions judged per trace (default 96)")
    parser.add_argument("--slower", type=float, default=1.0, help="how much slower the device is (default 1)")
    parser.add_argument("--ttft-ms", type=float, default=500, help="TTFT target (default 500)")
    parser.add_argument("--tpot-ms", type=float, default=50, help="TPOT target (default 50)")
    options = parser.parse_args()
    targets = Targets(options.ttft_ms / 1e3, options.tpot_ms / 1e3)
    plan = Plan(targets, options.rounds, options.sessions, "open loop")
    for line in lines(options.rates, plan, Device(slower=options.slower)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
