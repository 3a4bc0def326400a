"""When the first token of a request is to be expected, and whether it should be taken at all. Pure.

The wait for a slot is that of a queue with as many servers as there are slots, each of which is busy for as long as
answers usually go on that have come so far. The prompt is read beside others, the
shortest first, so each of them delays it by no more than its own length. What the two leave out is learned: factors on
them that follow a quantile of what came of it (Gibbs & Candès 2021, arXiv 2106.00170), of each class for the wait: the
usual one is told, a high one decides who is refused.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from math import ceil, exp
from statistics import fmean

from inference.config import EngineConfig
from inference.core import Due, Forecast, Priority
from inference.engine.load import Ahead
from inference.engine.scheduler import Scheduler
from inference.errors import Late
from inference.request import Request

LEARNING = 0.1  # weight of the newest request
# The shares that are to take no longer than foretold. Of reading, the usual time is foretold: on a busy machine, the
# slowest say nothing of the next one.
WAIT_QUANTILE, USUAL = 0.95, 0.5
LENGTHS = 64  # of the newest answers, which tell how long others go on
FACTOR_MIN, FACTOR_MAX = 0.5, 3.0  # beyond, the machine does something else
READ_FACTOR_MAX = 1.5  # a slow machine alone is no reason to send somebody away: coming back does not help
# Who is refused teaches nothing: after so many requests of which none had waited, each takes so much of the factor.
SILENT, FORGETTING = 20, 0.05
TENANTS_MAX = 1000  # whose times are remembered, in about 100 kB
# A prompt that cannot be read within its target even alone is late by itself: it may take this much of its own time
# longer, as waiting would not help it.
STRETCH = 1.25
RETRY_AFTER_MIN_S = 0.25  # a round trip and the patience of clients; nobody is sent away for less
RETRY_AFTER_MAX_S = 60.0  # the longest that official clients wait by themselves


@dataclass(frozen=True, slots=True)
class Speed:
    """What the engine has learned: seconds that a request holds its slot, of a step while it waits, of one in which its
    prompt is read, and for each token of prompts that are too long for one step."""

    slots: int
    slot_s: float
    step_s: float
    read_step_s: float
    token_s: float


class Factor:
    """Between what was foretold and what took place, at a quantile."""

    def __init__(self, quantile: float, most: float = FACTOR_MAX) -> None:
        self._quantile = quantile
        self._most = most
        self._silent = 0
        self.value = 1.0

    def observe(self, foretold_s: float, took_s: float) -> None:
        """`foretold_s`: with the factor of then."""
        self._silent = 0
        missed = float(took_s > foretold_s)
        self.value *= exp(LEARNING * (missed - (1 - self._quantile)))
        self.value = min(self._most, max(FACTOR_MIN, self.value))

    def forget(self) -> None:
        """Nothing was observed again."""
        self._silent += 1
        if self._silent > SILENT:
            self.value **= 1 - FORGETTING


class Lengths:
    """Of the newest answers, in tokens."""

    def __init__(self) -> None:
        self._newest: deque[int] = deque(maxlen=LENGTHS)
        self._sorted: list[int] = []

    def add(self, tokens: int) -> None:
        self._newest.append(tokens)
        self._sorted = sorted(self._newest)

    @property
    def mean(self) -> float:
        return fmean(self._sorted) if self._sorted else 0.0

    def left(self, said: int, most: int) -> float:
        """Tokens that an answer goes on for, in the mean of those that went on at all."""
        known = self._sorted
        longer = known[bisect_right(known, said) :]
        return min(most - said, fmean(longer) - said if longer else max(1.0, self.mean))


def wait_s(in_line: float, left_s: Sequence[float], slot_s: float, slots: int) -> float:
    """Until so many requests have left their slots, of which each is taken again for `slot_s`. `left_s` is when they
    first get free."""
    if len(left_s) < slots:
        return in_line * slot_s / slots
    free, before_s, at_s = list(left_s), 0.0, 0.0
    heapify(free)
    for _ in range(ceil(in_line)):
        before_s, at_s = at_s, free[0]
        heapreplace(free, at_s + slot_s)
    return before_s + (at_s - before_s) * (in_line - ceil(in_line) + 1) if in_line else 0.0


def forecast(prompt: int, ahead: Ahead, speed: Speed, reading: float = 1.0, left_s: Sequence[float] = ()) -> Forecast:
    """For a request with so many tokens of prompt to read; `reading` is the factor on that, and `left_s` how long those
    that run will."""
    read_s = max(speed.read_step_s, prompt * speed.token_s)
    if not (ahead.running or ahead.waiting):
        return Forecast(0.0, reading * read_s)
    free = speed.slots - ahead.running
    in_line = ahead.waiting - free + 1 if ahead.waiting >= free else 0.0
    waits_s = wait_s(in_line, left_s, speed.slot_s, speed.slots)
    others = float(sum(min(left, prompt) for left in ahead.prompts))
    if ahead.waiting:
        others += min(ahead.waiting, max(0, free)) * min(ahead.tokens / ahead.waiting, prompt)
    beside_s = max(0.0, others * speed.token_s - waits_s)  # some of them are read while it waits
    return Forecast(waits_s, reading * (read_s + beside_s + speed.step_s / 2))  # a step is under way


def late_by_s(expected: Forecast, left_s: float, alone_s: float) -> float:
    """Seconds after its time at which the first token is expected; 0 for one in time. `left_s` until it is due,
    `alone_s` on a machine of its own."""
    attainable = STRETCH * alone_s <= left_s
    allowed_s = left_s if attainable else STRETCH * alone_s + RETRY_AFTER_MIN_S
    return max(0.0, expected.most_s - allowed_s)


def retry_after_s(late_s: float) -> float:
    """When the queue is short enough, if nobody else comes: it gets shorter as fast as time goes by."""
    return min(RETRY_AFTER_MAX_S, max(RETRY_AFTER_MIN_S, late_s))


class Returns:
    """When those come back that were sent away. Each of a tenant is told another time, a place apart: together they
    would find the same queue again, all but the first."""

    def __init__(self) -> None:
        self._last_ns: OrderedDict[str, int] = OrderedDict()  # when the last one of a tenant comes

    def after(self, tenant: str, late_s: float, apart_s: float, now_ns: int) -> float:
        """Seconds from now on, for one that would be so late."""
        last_s = (self._last_ns.pop(tenant, 0) - now_ns) / 1e9
        told_s = min(RETRY_AFTER_MAX_S, max(late_s, last_s + apart_s if last_s > 0 else 0.0))
        self._last_ns[tenant] = now_ns + int(told_s * 1e9)
        if len(self._last_ns) > TENANTS_MAX:
            self._last_ns.popitem(last=False)
        return told_s


class Forecasts:
    """What the requests so far have taught of the next ones. The event loop asks, the engine's thread teaches."""

    def __init__(self, scheduler: Scheduler, config: EngineConfig) -> None:
        self._scheduler = scheduler
        self._config = config
        self._slot_s: float | None = None  # that a request holds its slot, in the mean
        self._prompt_tokens = 0.0  # that were not cached, in the mean
        self._lengths = Lengths()
        self._returns = Returns()
        self._reading = Factor(USUAL, READ_FACTOR_MAX)
        self._waiting = {priority: (Factor(USUAL), Factor(WAIT_QUANTILE)) for priority in Priority}

    @property
    def alone_s(self) -> float | None:
        """Seconds for a token of a prompt without streams, once that is known."""
        tokens = self._config.prefill_tokens_alone
        step_s = self._scheduler.cost.predict(tokens)
        return step_s and step_s / tokens

    @property
    def next_s(self) -> float | None:
        """Seconds until the first token of a request that came now, behind all that people wait for, with as much to
        read as those before it had in the mean. None while nothing was learned."""
        expected = self.expected(max(1, round(self._prompt_tokens)), "", Priority.BATCH)
        return None if expected is None else expected.total_s

    @property
    def next_place_s(self) -> float:
        """Until the next request leaves its slot."""
        return retry_after_s(self._apart_s)

    @property
    def _apart_s(self) -> float:
        """Between two requests that leave their slots, in the mean."""
        return (self._slot_s or 0.0) / self._config.parallel

    def check(self, tokens: int, due: Due, tenant: str, priority: Priority, now_ns: int) -> Forecast | None:
        """What is expected of a prompt with so many tokens to read; None while nothing was learned. Raises Late."""
        expected = self.expected(tokens, tenant, priority)
        if expected is None or due.at_ns is None or due.waits:
            return expected
        left_s = (due.at_ns - now_ns) / 1e9
        if expected.most_s <= left_s:
            return expected
        alone = self._of(tokens, Ahead(), priority)
        late_s = late_by_s(expected, left_s, alone.total_s)
        if not late_s:
            return expected
        retry_s = self._returns.after(tenant, late_s, self._apart_s, now_ns)
        without_others = self.expected(tokens, tenant, priority, others=False)
        raise Late(
            f"The first token is expected in {expected.most_s:.1f} s, which is too late. "
            "With the header x-firsttoken-late: wait the request is taken nevertheless.",
            retry_after_s(retry_s),
            own=without_others is not None and late_by_s(without_others, left_s, alone.total_s) > 0,
        )

    def expected(self, tokens: int, tenant: str, priority: Priority, *, others: bool = True) -> Forecast | None:
        if self._slot_s is None or self.alone_s is None:
            return None
        ahead = self._scheduler.load.ahead(priority, tenant, self._lengths.mean, others=others)
        if ahead.running >= self._config.parallel and self._scheduler.is_given_place(tenant):
            ahead = replace(ahead, waiting=0.0, tokens=0.0, running=self._config.parallel - 1)
        return self._of(tokens, ahead, priority)

    def _of(self, tokens: int, ahead: Ahead, priority: Priority) -> Forecast:
        token_s = (self._slot_s or 0.0) / max(1.0, self._lengths.mean)
        left_s = [token_s * self._lengths.left(said, most) for said, most in ahead.answers]
        told = forecast(tokens, ahead, self._speed(ahead, tokens), self._reading.value, left_s)
        usual, most = self._waiting[priority]
        return Forecast(usual.value * told.wait_s, told.read_s, most.value * told.wait_s)

    def learn(self, request: Request, now_ns: int) -> None:
        """Of one that has ended, also by its client: that is how many answers end."""
        stamps = request.stamps
        if not stamps.admitted_ns or request.preempted:
            return
        held_s = (now_ns - stamps.admitted_ns) / 1e9
        self._slot_s = held_s if self._slot_s is None else self._slot_s + LEARNING * (held_s - self._slot_s)
        self._prompt_tokens += LEARNING * (len(request.prompt) - request.reused - self._prompt_tokens)
        self._lengths.add(len(request.generated))
        if request.forecast and stamps.first_token_ns:
            took_s = (stamps.first_token_ns - stamps.submitted_ns) / 1e9
            self._compare(request.forecast, took_s, request.priority)

    def _compare(self, told: Forecast, took_s: float, priority: Priority) -> None:
        usual, most = self._waiting[priority]
        if told.wait_s:
            usual.observe(told.wait_s, took_s - told.read_s)
            most.observe(told.wait_most_s, took_s - told.read_s)
        else:
            usual.forget()
            most.forget()
            self._reading.observe(told.read_s, took_s)

    def _speed(self, ahead: Ahead, tokens: int) -> Speed:
        """Of the steps beside the streams that there will be."""
        cost, slots, alone_s = self._scheduler.cost, self._config.parallel, self.alone_s or 0.0
        streams = min(slots - 1, ahead.running + int(ahead.waiting))
        chunk = self._scheduler.prefill_chunk(streams, tokens + sum(ahead.prompts))
        chunk_s = cost.predict(streams + chunk)
        return Speed(
            slots,
            self._slot_s or 0.0,
            cost.predict(streams) or 0.0,
            cost.predict(streams + min(tokens, chunk)) or alone_s,
            chunk_s / chunk if chunk_s else alone_s,
        )
