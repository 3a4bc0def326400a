"""Predicts the TTFT of a request and decides on its admission. Pure.

The requests ahead are simulated until the new one gets a slot. While it waits, all slots are taken, so the steps until
it gets one are nearly known: one row per stream in every step, plus the prompts ahead of it. Only the answer lengths
are unknown. The simulation therefore runs a few samples, each with answer lengths drawn from the learned distribution:
the middle sample gives the median wait, the last one the tail. The draws for a request are stratified over the samples
and independent between requests (Latin hypercube sampling). They are the same in every simulation, so equal queues get
equal forecasts.

What the simulation leaves out is learned as correction factors on the wait and on prefill. Each tracks a quantile of
the observed ratio (Gibbs & Candès 2021, arXiv 2106.00170); those on the wait are per priority class. Clients are told
the median; a high quantile decides on refusals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from heapq import heapify, heapreplace
from math import ceil, exp
from random import Random
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.config import EngineConfig
from inference.engine.load import Ahead
from inference.engine.scheduler import Scheduler
from inference.engine.step import StepCost
from inference.errors import Late
from inference.frozen import dataclass
from inference.generation import NO_DEADLINE, Due, Finish, Forecast, Priority
from inference.lru_cache import LruCache
from inference.request import Request

NEWEST = 64  # recent answers in the estimate


class _Curve(NamedTuple):
    """`ended`: the share of answers that ended by themselves before each of `tokens`, and last the share before
    `longest`, where the tail begins. Both are ascending; `ended` begins with 0 and has one entry more."""

    tokens: NDArray[np.int64]
    ended: NDArray[np.float64]
    longest: int  # tokens of the longest recent answer, complete or not

    @classmethod
    def of(cls, tokens: list[int], ended: list[float], longest: int) -> _Curve:
        return cls(np.array(tokens, np.int64), np.array([0.0, *ended], np.float64), longest)


class AnswerLengths:
    """The distribution of answer lengths, learned from recent answers with the Kaplan-Meier estimator (1958).

    An answer that reached its token limit is censored: it only shows that its length would have been at least that. To
    count it as complete would make answers look shorter than they are.

    About lengths beyond the longest recent answer the estimator says nothing. There a Pareto tail with exponent 1 is
    assumed: of the answers that got that far, half get twice as far. To expect all of them at their limit instead would
    mean thousands of tokens for each request without a limit of its own, after a single short answer.

    Lengths are in tokens. The engine's thread adds answers while the event loop reads: the curve is replaced as a
    whole."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, bool]] = deque(maxlen=NEWEST)
        self._curve = _Curve.of([], [], 1)
        self.mean = 0.0

    def __len__(self) -> int:
        """Recent answers in the estimate."""
        return len(self._newest)

    def add(self, tokens: int, *, limited: bool) -> None:
        """Record an answer that has ended; `limited`: at its token limit."""
        self._newest.append((tokens, limited))
        ends, ended, left = list[int](), list[float](), 1.0
        for shorter, (length, was_limited) in enumerate(sorted(self._newest)):
            if not was_limited:
                left *= 1 - 1 / (len(self._newest) - shorter)
                ends.append(length)
                ended.append(1 - left)
        self._curve = _Curve.of(ends, ended, max(1, *[length for length, _ in self._newest]))
        self.mean = fmean(length for length, _ in self._newest)

    def left(
        self, generated: NDArray[np.int64], max_tokens: NDArray[np.int64], quantiles: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Quantiles of the number of tokens still to come, at least 1, given the tokens that each answer has so far.
        `generated` and `max_tokens` have shape (answers,), `quantiles` and the result (answers, quantiles)."""
        tokens, ended, longest = self._curve
        before = tokens.searchsorted(generated, side="right")
        over = ended[before][:, None]
        at = over + quantiles * (1 - over)
        end = np.maximum(ended[1:].searchsorted(at), before[:, None])
        tail = 1 - ended[-1]  # share of answers in it
        survivors = 1 - quantiles if tail <= 0 else np.minimum(1, (1 - at) / tail)
        reached = np.maximum(longest, generated)[:, None] / survivors
        length = np.where(end < len(tokens), np.append(tokens, 0)[end], np.minimum(reached, max_tokens[:, None]))
        return np.maximum(1, np.minimum(length, max_tokens[:, None]) - generated[:, None]).astype(np.int64)


# Number of samples, and of lengths drawn in total. The lengths of many requests average out, so fewer samples suffice.
SAMPLES, LOOKUPS_MAX = 9, 256
_SPREAD = [(sample + 0.5) / SAMPLES for sample in range(SAMPLES)]
_random = Random(1)
# Quantiles by request and sample, shape (64, SAMPLES). More requests than that reuse them from the start.
DRAWS = np.array([_random.sample(_SPREAD, SAMPLES) for _ in range(64)])


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast the engine works through its queue."""

    cost: StepCost
    places: int  # requests that run at once
    streams: int  # in decode beside the new request's prefill
    chunk: int  # prompt tokens per step
    tokens_per_step: float = 1.0  # of an answer, accepted drafts included
    rest_s: float = 0.0  # until the current step ends

    def step_s(self, rows: int) -> float:
        """Seconds of a step of that many rows, including the gap before the next one."""
        return (self.cost.predict(rows) or 0.0) + self.cost.between_s

    @property
    def token_s(self) -> float:
        """Seconds that each prompt token adds to a step."""
        return max(0.0, self.step_s(self.streams + self.chunk) - self.step_s(self.streams)) / self.chunk

    def prefill_s(self, prompt: int, others: Sequence[int]) -> float:
        """Seconds to prefill `prompt` tokens beside other prompts of these lengths. The shortest goes first, so each of
        the others delays it by at most its own length; tokens of the others fill up the step that completes it."""
        before = prompt + sum([min(left, prompt) for left in others])
        steps = ceil(before / self.chunk)
        last = min(self.chunk, prompt + sum(others) - (steps - 1) * self.chunk)
        return (steps - 1) * self.step_s(self.streams + self.chunk) + self.step_s(self.streams + last)


class SimulatedWait(NamedTuple):
    """The simulated TTFT of a new request."""

    waits_s: Sequence[float]  # until it gets a slot; one per sample, in ascending order
    prefill_s: float  # from then to its first token, in the median sample

    def wait_s(self, quantile: float) -> float:
        return self.waits_s[min(len(self.waits_s) - 1, int(quantile * len(self.waits_s)))]


def simulate(prompt: int, ahead: Ahead, speed: Speed, lengths: AnswerLengths) -> SimulatedWait:
    """The wait of a new request with `prompt` uncached tokens behind the requests ahead. The work is bounded: about
    LOOKUPS_MAX draws, but at least one per request."""
    requests = len(ahead.running) + len(ahead.waiting)
    if requests < speed.places - ahead.held:
        others = [each.to_prefill for each in (*ahead.running, *ahead.waiting)]
        return SimulatedWait([0.0], speed.rest_s + speed.prefill_s(prompt, others))
    generated, max_tokens, to_prefill = np.array([*zip(*ahead.running, *ahead.waiting, strict=True)], np.int64)
    samples = min(SAMPLES, max(1, LOOKUPS_MAX // requests))
    draws = DRAWS[np.arange(requests) % len(DRAWS), :samples]
    steps = _steps(lengths.left(generated, max_tokens, draws), to_prefill, speed)
    free = speed.places - ahead.held - len(ahead.running)
    starts = np.array([_starts(each, len(ahead.running), free) for each in steps.T.tolist()], np.int64)
    admitted = starts[:, -1]
    rest = np.maximum(0, to_prefill - (admitted[:, None] - starts[:, :-1]) * speed.chunk)
    prefilled = to_prefill.sum() - rest.sum(axis=1)
    waits_s = speed.rest_s + admitted * speed.step_s(speed.places) + prefilled * speed.token_s
    order = waits_s.argsort()
    beside = rest[order[samples // 2]]
    return SimulatedWait(waits_s[order].tolist(), speed.prefill_s(prompt, beside[beside > 0].tolist()))


def _steps(left: NDArray[np.int64], to_prefill: NDArray[np.int64], speed: Speed) -> NDArray[np.int64]:
    """Further steps of each request, by sample: shape (requests, samples). `left`: tokens left of its answer, in the
    same shape; `to_prefill` has shape (requests,)."""
    if speed.tokens_per_step > 1:
        left = np.ceil(left / speed.tokens_per_step).astype(np.int64)
    # The step that completes a prompt also yields a token; one without prompt left gets one from the current step.
    prefills = np.where(to_prefill > 0, -(-to_prefill // speed.chunk) - 1, -int(speed.rest_s > 0))
    return left + prefills[:, None]


def _starts(steps: Sequence[int], running: int, free: int) -> list[int]:
    """When each request gets its slot, and last the new one: in steps, where 0 is the next one."""
    ends = [*steps[:running], *[0] * free]
    heapify(ends)
    return [*[0] * running, *[heapreplace(ends, ends[0] + lasts) for lasts in steps[running:]], ends[0]]


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
TENANTS_MAX = 1000  # whose retry times are remembered, and forecasts, in some 100 kB
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


class Forecasts:
    """Predicts from what past requests have taught. The event loop asks, the engine's thread teaches."""

    def __init__(self, scheduler: Scheduler, config: EngineConfig) -> None:
        self._scheduler = scheduler
        self._config = config
        self._slot_s: float | None = None  # mean time that a request holds its slot
        self._prompt_tokens = 0.0  # mean number of uncached prompt tokens
        self._lengths = AnswerLengths()
        self._retries = RetrySchedule()
        self._made: LruCache[Hashable, tuple[int, Forecast]] = LruCache(TENANTS_MAX)  # each with when it was made
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
        expected = self._recent(max(1, round(self._prompt_tokens)), NO_DEADLINE, "", Priority.BATCH, now_ns)
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
        expected = self._recent(tokens, due, tenant, priority, now_ns)
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
            without_others = self._recent(tokens, due, tenant, priority, now_ns, others=False)
            own = without_others is not None and late_by_s(without_others, left_s, idle.total_s) > 0
        raise Late(
            f"The first token is expected in {expected.most_s:.1f} s, which is too late. "
            "Send the header x-firsttoken-late: wait to queue the request anyway.",
            retry_after_s(retry_s),
            own=own,
        )

    def _recent(
        self, tokens: int, due: Due, tenant: str, priority: Priority, now_ns: int, *, others: bool = True
    ) -> Forecast | None:
        """`expected`, or a recent result of it: that for the same request while the load is unchanged, or for one like
        it that waits behind a long queue. Statistics ask several times a second."""
        load, due_ns = self._scheduler.load, due.at_ns
        is_shared = load.total.waiting >= LONG_QUEUE and (due.waits or due_ns is None)
        if is_shared:  # all places are taken, or about to be
            waiting = (load.total.waiting // SHARED_REQUESTS, load.held_by(tenant).waiting // SHARED_REQUESTS)
            alike: Hashable = (tokens // SHARED_TOKENS, tenant, priority, *waiting)
        else:
            due_bucket = None if due_ns is None else (due_ns - now_ns) // DUE_BUCKET_NS
            alike = (tokens, tenant, priority, due_bucket, others, load.version)
        if (known := self._made.get(alike)) is not None:
            made_ns, made = known
            age_s = (now_ns - made_ns) / 1e9
            if age_s < (SHARED_S if is_shared else REUSE_S) and (age_s < made.wait_s or not made.wait_s):
                return made if is_shared else made.after(age_s)
        forecast = self.expected(tokens, tenant, priority, due_ns, now_ns, others=others)
        if forecast is not None:
            self._made.put(alike, (now_ns, forecast))
        return forecast

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
            self._prefill_factor.value * simulated.prefill_s,
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
        if request.decode_steps.count:
            tokens_per_step = max(1.0, (len(request.generated) - 1) / request.decode_steps.count)
            self._tokens_per_step += LEARNING_RATE * (tokens_per_step - self._tokens_per_step)
        if request.forecast and stamps.first_token_ns:
            ttft_s = (stamps.first_token_ns - stamps.submitted_ns) / 1e9
            self._compare(request.forecast, ttft_s, request.priority)

    def _compare(self, forecast: Forecast, ttft_s: float, priority: Priority) -> None:
        median, tail = self._wait_factors[priority]
        if forecast.wait_s:
            median.observe(forecast.wait_s, ttft_s - forecast.prefill_s)
            tail.observe(forecast.wait_most_s, ttft_s - forecast.prefill_s)
        else:
            median.decay()
            tail.decay()
            self._prefill_factor.observe(forecast.prefill_s, ttft_s)

    def _speed(self, ahead: Ahead, tokens: int, rest_s: float) -> Speed:
        scheduler, places = self._scheduler, self._config.parallel
        streams = min(places - 1, len(ahead.running) + len(ahead.waiting))
        chunk = scheduler.chunks.size(streams, tokens + sum([each.to_prefill for each in ahead.running]))
        return Speed(scheduler.cost, places, streams, chunk, self._tokens_per_step, rest_s)
