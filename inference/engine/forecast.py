"""Predicts the TTFT of a request, and decides whether it is admitted. Pure.

The requests ahead are simulated (see inference.engine.queue_simulation). What the simulation leaves out is learned:
factors on the wait and on the prefill that track a quantile of the observed ratio (Gibbs & Candès 2021, arXiv
2106.00170), those of the wait per class. The median is reported to clients, a high quantile decides about refusals.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import exp

from inference.config import EngineConfig
from inference.core import Due, Finish, Forecast, Priority
from inference.engine.answer_lengths import AnswerLengths
from inference.engine.queue_simulation import Ahead, Speed, simulate
from inference.engine.scheduler import Scheduler
from inference.errors import Late
from inference.request import Request

LEARNING = 0.1  # weight of the newest request
# The shares that are to take no longer than foretold. Of reading, the usual time is foretold: on a busy machine, the
# slowest say nothing of the next one.
WAIT_QUANTILE, USUAL = 0.95, 0.5
# Of the factor on what is usual: what was played through is nearly right, and to follow each request closely only makes
# it uneven.
LEARNING_USUAL = 0.03
FACTOR_MIN, FACTOR_MAX = 0.5, 3.0  # beyond, the machine does something else
READ_FACTOR_MAX = 1.5  # a slow machine alone is no reason to send somebody away: coming back does not help
# Who is refused teaches nothing: after so many requests of which none had waited, each takes so much of the factor.
SILENT, FORGETTING = 20, 0.05
TENANTS_MAX = 1000  # whose times are remembered, in about 100 kB
# A prompt that cannot be read within its target even alone is late by itself: it may take this much of its own time
# longer, as waiting would not help it.
STRETCH = 1.25
# While the load is unchanged, a forecast is repeated for so long, less the time gone by: a flood of requests that are
# refused changes nothing, and each would otherwise cost a simulation.
REPEATED_S = 0.05
# Requests with times until their first token is due that differ by less get the same forecast.
DUE_BUCKET_NS = 50 * 10**6
RETRY_AFTER_MIN_S = 0.25  # a round trip and the patience of clients; nobody is sent away for less
RETRY_AFTER_MAX_S = 60.0  # the longest that official clients wait by themselves


class Factor:
    """Between what was foretold and what took place, at a quantile."""

    def __init__(self, quantile: float, most: float = FACTOR_MAX, learning: float = LEARNING) -> None:
        self._quantile = quantile
        self._most = most
        self._learning = learning
        self._silent = 0
        self.value = 1.0

    def observe(self, foretold_s: float, took_s: float) -> None:
        """`foretold_s`: with the factor of then."""
        self._silent = 0
        missed = float(took_s > foretold_s)
        self.value *= exp(self._learning * (missed - (1 - self._quantile)))
        self.value = min(self._most, max(FACTOR_MIN, self.value))

    def forget(self) -> None:
        """Nothing was observed again."""
        self._silent += 1
        if self._silent > SILENT:
            self.value **= 1 - FORGETTING


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


class Repeats:
    """The forecasts since the load last changed, each to be repeated for a while."""

    def __init__(self) -> None:
        self._changes = 0  # of the load
        self._made: dict[Hashable, tuple[int, Forecast]] = {}

    def get(self, asked: Hashable, changes: int, now_ns: int, make: Callable[[], Forecast | None]) -> Forecast | None:
        if changes != self._changes or len(self._made) > TENANTS_MAX:
            self._made.clear()
            self._changes = changes
        if asked in self._made:
            made_ns, made = self._made[asked]
            gone_s = (now_ns - made_ns) / 1e9
            if gone_s < REPEATED_S and (gone_s < made.wait_s or not made.wait_s):
                return made.after(gone_s)
        forecast = make()
        if forecast is not None:
            self._made[asked] = now_ns, forecast
        return forecast


class Forecasts:
    """What the requests so far have taught of the next ones. The event loop asks, the engine's thread teaches."""

    def __init__(self, scheduler: Scheduler, config: EngineConfig) -> None:
        self._scheduler = scheduler
        self._config = config
        self._slot_s: float | None = None  # that a request holds its slot, in the mean
        self._prompt_tokens = 0.0  # that were not cached, in the mean
        self._lengths = AnswerLengths()
        self._returns = Returns()
        self._repeats = Repeats()
        self._tokens_per_step = 1.0  # of an answer, drafts included
        self._reading = Factor(USUAL, READ_FACTOR_MAX, LEARNING_USUAL)
        self._waiting = {
            priority: (Factor(USUAL, FACTOR_MAX, LEARNING_USUAL), Factor(WAIT_QUANTILE)) for priority in Priority
        }

    @property
    def alone_s(self) -> float | None:
        """Seconds for a token of a prompt without streams, once that is known."""
        tokens = self._config.prefill_tokens_alone
        step_s = self._scheduler.cost.predict(tokens)
        return step_s and step_s / tokens

    def next_s(self, now_ns: int) -> float | None:
        """Seconds until the first token of a request that came now, behind all that people wait for, with as much to
        read as those before it had in the mean. None while nothing was learned."""
        expected = self.expected(max(1, round(self._prompt_tokens)), "", Priority.BATCH, None, now_ns)
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
        expected = self._repeated(tokens, tenant, priority, due.at_ns, now_ns, others=True)
        if expected is None or due.at_ns is None or due.waits:
            return expected
        left_s = (due.at_ns - now_ns) / 1e9
        if expected.most_s <= left_s:
            return expected
        alone = self._of(tokens, Ahead(), priority, rest_s=0.0)
        late_s = late_by_s(expected, left_s, alone.total_s)
        if not late_s:
            return expected
        retry_s = self._returns.after(tenant, late_s, self._apart_s, now_ns)
        own = self._scheduler.load.is_all_of(tenant)
        if not own:
            without_others = self._repeated(tokens, tenant, priority, due.at_ns, now_ns, others=False)
            own = without_others is not None and late_by_s(without_others, left_s, alone.total_s) > 0
        raise Late(
            f"The first token is expected in {expected.most_s:.1f} s, which is too late. "
            "With the header x-firsttoken-late: wait the request is taken nevertheless.",
            retry_after_s(retry_s),
            own=own,
        )

    def _repeated(
        self, tokens: int, tenant: str, priority: Priority, due_ns: int | None, now_ns: int, *, others: bool
    ) -> Forecast | None:
        """The same as `expected`, or what it was a moment ago."""
        due_bucket = None if due_ns is None else (due_ns - now_ns) // DUE_BUCKET_NS
        return self._repeats.get(
            (tokens, tenant, priority, due_bucket, others),
            self._scheduler.load.changes,
            now_ns,
            lambda: self.expected(tokens, tenant, priority, due_ns, now_ns, others=others),
        )

    def expected(
        self,
        tokens: int,
        tenant: str,
        priority: Priority,
        due_ns: int | None,
        now_ns: int,
        *,
        others: bool = True,
    ) -> Forecast | None:
        """Of a newcomer with so many tokens of prompt to read. None while nothing was learned."""
        if self._slot_s is None or self.alone_s is None:
            return None
        scheduler = self._scheduler
        ahead = scheduler.load.ahead(priority, tenant, due_ns, now_ns, self._lengths.mean, others=others)
        places = self._config.parallel - ahead.held
        if len(ahead.running) >= places and scheduler.is_given_place(tenant, ahead.own):
            ahead = Ahead(ahead.running[: places - 1])
        return self._of(tokens, ahead, priority, rest_s=scheduler.rest_s(now_ns))

    def _of(self, tokens: int, ahead: Ahead, priority: Priority, *, rest_s: float) -> Forecast:
        simulated = simulate(tokens, ahead, self._speed(ahead, tokens, rest_s), self._lengths)
        usual, most = self._waiting[priority]
        return Forecast(
            usual.value * simulated.wait_s(USUAL),
            self._reading.value * simulated.read_s,
            most.value * simulated.wait_s(WAIT_QUANTILE),
        )

    def learn(self, request: Request, now_ns: int) -> None:
        """Of one that has ended, also by its client: that is how many answers end."""
        stamps = request.stamps
        if not stamps.admitted_ns or request.preempted:
            return
        held_s = (now_ns - stamps.admitted_ns) / 1e9
        self._slot_s = held_s if self._slot_s is None else self._slot_s + LEARNING * (held_s - self._slot_s)
        self._prompt_tokens += LEARNING * (len(request.prompt) - request.reused - self._prompt_tokens)
        self._lengths.add(len(request.generated), limited=request.finish is Finish.LENGTH)
        if request.writing.count:
            tokens_per_step = max(1.0, (len(request.generated) - 1) / request.writing.count)
            self._tokens_per_step += LEARNING * (tokens_per_step - self._tokens_per_step)
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

    def _speed(self, ahead: Ahead, tokens: int, rest_s: float) -> Speed:
        scheduler, places = self._scheduler, self._config.parallel
        streams = min(places - 1, len(ahead.running) + len(ahead.waiting))
        chunk = scheduler.prefill_chunk(streams, tokens + sum([place.unread for place in ahead.running]))
        return Speed(scheduler.cost, places, streams, chunk, self._tokens_per_step, rest_s)
