"""Predicts the TTFT of a request and decides on its admission. Pure.

The requests ahead are simulated (see inference.engine.queue_simulation). What the simulation leaves out is learned as
correction factors on the wait and on prefill. Each tracks a quantile of the observed ratio (Gibbs & Candès 2021, arXiv
2106.00170); those on the wait are per priority class. Clients are told the median; a high quantile decides on refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import exp

from inference.config import EngineConfig
from inference.engine.queue_simulation import Ahead, AnswerLengths, Speed, simulate
from inference.engine.scheduler import Scheduler
from inference.errors import Late
from inference.generation import NO_DEADLINE, Due, Finish, Forecast, Priority
from inference.lru_cache import LruCache
from inference.request import Request

LEARNING_RATE = 0.1  # weight of the newest request
# The simulation already gets the median nearly right: following each request closely would only add noise.
MEDIAN_LEARNING_RATE = 0.03
# The quantiles of the wait that are predicted: TAIL decides on refusals. Prefill is predicted at its median only: on a
# busy machine, the slowest prefills say nothing about the next one.
TAIL, MEDIAN = 0.95, 0.5
FACTOR_MIN, FACTOR_MAX = 0.5, 3.0  # beyond these, the machine is busy with something else
PREFILL_FACTOR_MAX = 1.5  # a slow machine alone is no reason to refuse a request: a retry would not be faster
# Refused requests yield no observations, so a factor that has grown too large would never recover. After DECAY_AFTER
# consecutive requests that did not have to wait, each further one shrinks its logarithm by DECAY.
DECAY_AFTER, DECAY = 20, 0.05
TENANTS_MAX = 1000  # whose retry times are remembered, in about 100 kB
# A prompt whose prefill misses its target even on an idle engine may take up to this many times its idle prefill time:
# it is late because of its own length, and a retry would not help.
STRETCH = 1.25
# While the load is unchanged, a forecast is reused for this long, less the time elapsed: refused requests do not change
# the load, and in a flood of them each would otherwise cost a simulation.
REUSE_S = 0.05
# Who waits however late the first token will be shares a forecast behind a long queue, while the queue is about as long
# as it was: what left it and what joined it are alike. Simulating so many costs the event loop as much as eight tokens.
LONG_QUEUE, SHARED_S = 16, 0.5
SHARED_REQUESTS = 4  # queues whose lengths differ by less: by a tenth on average where the queue has just become long
SHARED_TOKENS = 16  # prompts of about the same length
# Requests whose time left until the first token is due falls into the same bucket share a forecast.
DUE_BUCKET_NS = 50 * 10**6
# Until this many requests have ended, none is refused: fewer tell too little about those that are still running.
LEARNED_MIN = 8
RETRY_AFTER_MIN_S = 0.25  # a round trip plus what a client puts up with; no request is refused for less
RETRY_AFTER_MAX_S = 60.0  # the longest Retry-After that official clients honor


class Factor:
    """The ratio of actual to predicted time, at a quantile."""

    def __init__(self, quantile: float, maximum: float = FACTOR_MAX, learning_rate: float = LEARNING_RATE) -> None:
        self._quantile = quantile
        self._max = maximum
        self._learning_rate = learning_rate
        self._unobserved = 0  # consecutive requests without an observation
        self.value = 1.0

    def observe(self, predicted_s: float, actual_s: float) -> None:
        """`predicted_s` includes the factor as it was at the time of the prediction."""
        self._unobserved = 0
        exceeded = float(actual_s > predicted_s)
        self.value *= exp(self._learning_rate * (exceeded - (1 - self._quantile)))
        self.value = min(self._max, max(FACTOR_MIN, self.value))

    def decay(self) -> None:
        """Record a request that yielded no observation."""
        self._unobserved += 1
        if self._unobserved > DECAY_AFTER:
            self.value **= 1 - DECAY


def late_by_s(expected: Forecast, left_s: float, idle_prefill_s: float) -> float:
    """Seconds by which the first token is expected to miss its due time; 0 if it is on time. `left_s`: seconds until it
    is due. `idle_prefill_s`: prefill time of the prompt on an idle engine."""
    attainable = STRETCH * idle_prefill_s <= left_s
    allowed_s = left_s if attainable else STRETCH * idle_prefill_s + RETRY_AFTER_MIN_S
    return max(0.0, expected.most_s - allowed_s)


def retry_after_s(late_s: float) -> float:
    """Seconds until the queue is short enough, if no other request arrives: it drains in real time."""
    return min(RETRY_AFTER_MAX_S, max(RETRY_AFTER_MIN_S, late_s))


class RetrySchedule:
    """Spreads the retries of refused requests. Those of one tenant get different times, as far apart as slots become
    free: if they retried together, all but the first would find the same queue again."""

    def __init__(self) -> None:
        self._last_ns: LruCache[str, int] = LruCache(TENANTS_MAX)  # latest retry by tenant

    def assign(self, tenant: str, late_s: float, interval_s: float, now_ns: int) -> float:
        """Seconds until the retry of a request that would be late by `late_s`."""
        last_s = ((self._last_ns.get(tenant) or 0) - now_ns) / 1e9
        retry_s = min(RETRY_AFTER_MAX_S, max(late_s, last_s + interval_s if last_s > 0 else 0.0))
        self._last_ns.put(tenant, now_ns + int(retry_s * 1e9))
        return retry_s


class ForecastCache:
    """The forecasts made since the load last changed, each valid for `reuse_s`. Their waits `run_down` meanwhile."""

    def __init__(self, reuse_s: float, *, run_down: bool) -> None:
        self._reuse_s, self._run_down = reuse_s, run_down
        self._version = 0  # of the load
        self._made: dict[Hashable, tuple[int, Forecast]] = {}

    def get(self, key: Hashable, version: int, now_ns: int, make: Callable[[], Forecast | None]) -> Forecast | None:
        if version != self._version or len(self._made) > TENANTS_MAX:
            self._made.clear()
            self._version = version
        if key in self._made:
            made_ns, made = self._made[key]
            age_s = (now_ns - made_ns) / 1e9
            if age_s < self._reuse_s and (age_s < made.wait_s or not made.wait_s):
                return made.after(age_s) if self._run_down else made
        forecast = make()
        if forecast is not None:
            self._made[key] = now_ns, forecast
        return forecast


class Forecasts:
    """Predicts from what past requests have taught. The event loop asks, the engine's thread teaches."""

    def __init__(self, scheduler: Scheduler, config: EngineConfig) -> None:
        self._scheduler = scheduler
        self._config = config
        self._slot_s: float | None = None  # mean time that a request holds its slot
        self._prompt_tokens = 0.0  # mean number of uncached prompt tokens
        self._lengths = AnswerLengths()
        self._retries = RetrySchedule()
        self._cache = ForecastCache(REUSE_S, run_down=True)
        self._shared = ForecastCache(SHARED_S, run_down=False)
        self._tokens_per_step = 1.0  # of an answer, accepted drafts included
        self._prefill_factor = Factor(MEDIAN, PREFILL_FACTOR_MAX, MEDIAN_LEARNING_RATE)
        self._wait_factors = {
            priority: (Factor(MEDIAN, FACTOR_MAX, MEDIAN_LEARNING_RATE), Factor(TAIL)) for priority in Priority
        }

    @property
    def prefill_token_s(self) -> float | None:
        """Seconds to prefill one token on an otherwise idle engine; None until steps were measured."""
        tokens = self._config.prefill_tokens_alone
        step_s = self._scheduler.cost.predict(tokens)
        return step_s and step_s / tokens

    def next_ttft_s(self, now_ns: int) -> float | None:
        """TTFT in seconds of a request that arrived now, queued behind everything that clients wait for, with the mean
        number of uncached prompt tokens. None until a request has ended."""
        expected = self._told(max(1, round(self._prompt_tokens)), NO_DEADLINE, "", Priority.BATCH, now_ns)
        return None if expected is None else expected.total_s

    @property
    def next_slot_s(self) -> float:
        """Seconds until a slot becomes free, within the bounds of a Retry-After."""
        return retry_after_s(self._slot_interval_s)

    @property
    def _slot_interval_s(self) -> float:
        """Mean time between two slots becoming free, under full load."""
        return (self._slot_s or 0.0) / self._config.parallel

    def check(self, tokens: int, due: Due, tenant: str, priority: Priority, now_ns: int) -> Forecast | None:
        """The forecast for a prompt with `tokens` uncached tokens; None until a request has ended.

        Raises Late if the first token would miss its due time, unless `due.waits`.
        """
        expected = self._told(tokens, due, tenant, priority, now_ns)
        if expected is None or due.at_ns is None or due.waits or len(self._lengths) < LEARNED_MIN:
            return expected
        left_s = (due.at_ns - now_ns) / 1e9
        if expected.most_s <= left_s:
            return expected
        idle = self._forecast(tokens, Ahead(), priority, rest_s=0.0)
        late_s = late_by_s(expected, left_s, idle.total_s)
        if not late_s:
            return expected
        retry_s = self._retries.assign(tenant, late_s, self._slot_interval_s, now_ns)
        own = self._scheduler.load.is_only(tenant)
        if not own:
            without_others = self._cached(tokens, tenant, priority, due.at_ns, now_ns, others=False)
            own = without_others is not None and late_by_s(without_others, left_s, idle.total_s) > 0
        raise Late(
            f"The first token is expected in {expected.most_s:.1f} s, which is too late. "
            "Send the header x-firsttoken-late: wait to queue the request anyway.",
            retry_after_s(retry_s),
            own=own,
        )

    def _told(self, tokens: int, due: Due, tenant: str, priority: Priority, now_ns: int) -> Forecast | None:
        """What clients are told, and refused by if they do not wait; statistics tell it several times a second."""

        def make() -> Forecast | None:
            return self._cached(tokens, tenant, priority, due.at_ns, now_ns, others=True)

        load = self._scheduler.load
        if load.waiting < LONG_QUEUE or not (due.waits or due.at_ns is None):
            return make()
        waiting = (load.waiting // SHARED_REQUESTS, load.held_by(tenant).waiting // SHARED_REQUESTS)
        alike = (tokens // SHARED_TOKENS, tenant, priority, *waiting)  # all places are taken, or about to be
        return self._shared.get(alike, 0, now_ns, make)

    def _cached(
        self, tokens: int, tenant: str, priority: Priority, due_ns: int | None, now_ns: int, *, others: bool
    ) -> Forecast | None:
        """`expected`, or a recent result of it."""
        due_bucket = None if due_ns is None else (due_ns - now_ns) // DUE_BUCKET_NS
        return self._cache.get(
            (tokens, tenant, priority, due_bucket, others),
            self._scheduler.load.version,
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
        """The forecast for a new request with `tokens` uncached prompt tokens; None until a request has ended. Without
        `others`, the load of other tenants is left out."""
        if self._slot_s is None or self.prefill_token_s is None:
            return None
        scheduler = self._scheduler
        ahead = scheduler.load.ahead(priority, tenant, due_ns, now_ns, self._lengths.mean, others=others)
        places = self._config.parallel - ahead.held
        if len(ahead.running) >= places and scheduler.gets_slot(tenant, ahead.own):
            ahead = Ahead(ahead.running[: places - 1])
        return self._forecast(tokens, ahead, priority, rest_s=scheduler.rest_s(now_ns))

    def _forecast(self, tokens: int, ahead: Ahead, priority: Priority, *, rest_s: float) -> Forecast:
        simulated = simulate(tokens, ahead, self._speed(ahead, tokens, rest_s), self._lengths)
        median, tail = self._wait_factors[priority]
        return Forecast(
            median.value * simulated.wait_s(MEDIAN),
            self._prefill_factor.value * simulated.read_s,
            tail.value * simulated.wait_s(TAIL),
        )

    def learn(self, request: Request, now_ns: int) -> None:
        """Learn from a request that has ended. Cancelled ones count too: many answers end that way."""
        stamps = request.stamps
        if not stamps.admitted_ns or request.preempted:
            return
        held_s = (now_ns - stamps.admitted_ns) / 1e9
        self._slot_s = held_s if self._slot_s is None else self._slot_s + LEARNING_RATE * (held_s - self._slot_s)
        self._prompt_tokens += LEARNING_RATE * (len(request.prompt) - request.cached_tokens - self._prompt_tokens)
        self._lengths.add(len(request.generated), limited=request.finish is Finish.LENGTH)
        if request.writing.count:
            tokens_per_step = max(1.0, (len(request.generated) - 1) / request.writing.count)
            self._tokens_per_step += LEARNING_RATE * (tokens_per_step - self._tokens_per_step)
        if request.forecast and stamps.first_token_ns:
            ttft_s = (stamps.first_token_ns - stamps.submitted_ns) / 1e9
            self._compare(request.forecast, ttft_s, request.priority)

    def _compare(self, forecast: Forecast, ttft_s: float, priority: Priority) -> None:
        median, tail = self._wait_factors[priority]
        if forecast.wait_s:
            median.observe(forecast.wait_s, ttft_s - forecast.read_s)
            tail.observe(forecast.wait_most_s, ttft_s - forecast.read_s)
        else:
            median.decay()
            tail.decay()
            self._prefill_factor.observe(forecast.read_s, ttft_s)

    def _speed(self, ahead: Ahead, tokens: int, rest_s: float) -> Speed:
        scheduler, places = self._scheduler, self._config.parallel
        streams = min(places - 1, len(ahead.running) + len(ahead.waiting))
        chunk = scheduler.prefill_chunk(streams, tokens + sum([each.unread for each in ahead.running]))
        return Speed(scheduler.cost, places, streams, chunk, self._tokens_per_step, rest_s)
