"""A step: the work that the scheduler plans and the executor computes; what steps cost, learned from earlier ones; and
how many prompt tokens they take for that. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter

from inference.attention import CELLS_READ
from inference.backend import Chunk
from inference.config import EngineConfig
from inference.generation import Priority
from inference.kvcache.slots import Placement
from inference.request import EXACT_ROWS_MIN, Request


@dataclass(slots=True, kw_only=True)
class Work(Chunk):
    """Tokens of one request to compute in this step. `outputs` is 0 in the middle of a prompt, 1 where a token is
    sampled, one more for each drafted token, and before these come the `scored` ones, of prompt tokens whose log
    probabilities are wanted. `forced`: the draft consists of tokens for which the grammar leaves no choice;
    `predicted`: of those that the request predicted.

    `apart`: prompt tokens of an exact request (see EXACT_ROWS_MIN), so that no other stream determines how their rows
    are split, and the embeddings of a picture, which cannot be in one batch with tokens.
    """

    request: Request
    forced: bool = False
    predicted: bool = False
    scored: int = 0

    @property
    def sampled(self) -> int:
        """Rows from which a token may be sampled."""
        return self.outputs - self.scored

    @property
    def draft(self) -> Sequence[int]:
        return self.tokens[len(self.tokens) - self.sampled + 1 :] if self.sampled > 1 else ()

    def with_draft(self, draft: Sequence[int], *, forced: bool = False, predicted: bool = False) -> Work:
        tokens = [*self.tokens, *draft]
        return replace(self, tokens=tokens, outputs=1 + len(draft), forced=forced, predicted=predicted)


@dataclass(slots=True)
class Plan:
    """A step to execute: first place the requests, then compute the work, which is sorted by slot."""

    placements: list[tuple[Request, Placement]] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    prefills: bool = False  # some of the work is of prompts
    preempted: int = 0

    @property
    def rows(self) -> int:
        return sum([len(work.tokens) for work in self.work])

    def cost_follows_rows(self, *, parted: bool) -> bool:
        """Whether its duration says how long other steps with as many rows take. `parted`: slots have KV streams of
        their own, so drafts of different lengths are computed in parts (see inference.attention.step_parts)."""
        if any(work.scored or work.embeddings for work in self.work):  # logits, or a batch of its own, take longer
            return False
        return not parted or len({work.outputs or 1 for work in self.work}) == 1


SMOOTHING = 0.2  # weight of the newest step; of the first ones, the mean counts
# An observation counts as at most this many times the usual step: more means that the machine did something else in
# between. Steps that have become so much slower for good are learned after a few.
PAUSE = 2.0
# The time between two steps depends on what the event loop is doing, so it is averaged over many; a longer gap than
# this means that the steps did not follow each other directly.
BETWEEN_SMOOTHING, BETWEEN_MAX_S = 0.02, 0.1


@dataclass(slots=True)
class _Known:
    """The usual step of one size."""

    rows: float
    seconds: float
    steps: int = 1


_rows = attrgetter("rows")


class StepCost:
    """Pure. Steps are grouped by the power of two of their rows; between groups the cost is interpolated linearly."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._ordered: list[_Known] = []  # the smallest size first
        self.between_s = 0.0  # from the end of a step to the start of the next, where one follows at once

    def observe_between(self, seconds: float) -> None:
        """Record the gap between two steps, in which tokens were sampled and published and the next step was planned,
        while the event loop had the interpreter for some of the time."""
        self.between_s += BETWEEN_SMOOTHING * (min(seconds, BETWEEN_MAX_S) - self.between_s)

    def observe(self, rows: int, seconds: float) -> None:
        known = self._known.get(rows.bit_length())
        if known is None:
            known = self._known[rows.bit_length()] = _Known(rows, seconds)
            self._ordered = [self._known[size] for size in sorted(self._known)]
            return
        known.steps += 1
        weight = max(SMOOTHING, 1 / known.steps)
        known.rows += weight * (rows - known.rows)
        known.seconds += weight * (min(seconds, PAUSE * known.seconds) - known.seconds)

    def predict(self, rows: int) -> float | None:
        """Seconds for a step of that many rows; None if no step of that size or smaller was seen.

        Beyond the largest size seen, a row is assumed to cost what it costs there, which overestimates it.
        """
        known = self._ordered
        above = bisect_right(known, rows, key=_rows)
        if 0 < above < len(known):
            low, high = known[above - 1], known[above]
            share = (rows - low.rows) / (high.rows - low.rows)
            return low.seconds + share * (high.seconds - low.seconds)
        if not known or rows.bit_length() < int(known[0].rows).bit_length():
            return None
        nearest = known[max(0, above - 1)]
        return nearest.seconds * rows / nearest.rows


# Prefill chunk sizes beside streams, largest first. Multiples of 16 suit the matrix kernels. The smallest is used
# however long it takes, because a prompt must make progress.
PREFILL_CHUNKS = tuple(range(512, 0, -16))
# The limit on a step with a chunk is the inter-token target or, if longer, this many times a step without one. On a
# slow machine no chunk fits the target, and tiny ones would slow the streams for much longer and the new request to a
# crawl. With this limit, five sixths of the time go to the new request, which takes a fifth longer than on an idle
# machine.
STRETCH_MAX = 6.0
# Beside a stream that has fallen behind its own pace, the limit is this many times a step without a chunk.
BEHIND_STRETCH = 2.0
# A prompt that needs more than this share of the time until it is due does not wait for the pace of streams: these can
# catch up, a late first token cannot. With a share of one, more answers are late; with a third or a tenth, as many.
URGENT_SHARE = 0.2
# A longer step is allowed up to this share of the total prefill time of the running prompts. The more tokens precede a
# chunk, the less its cost depends on its size: under the limit above, a long prompt would take half as long again.
PROMPT_SHARE = 1 / 32
# But at most this many times that limit: no prompt, however long, may stall the other streams for seconds.
LONGER_MAX = 4.0
# Prompts of different lengths are computed in parts: their common length together, then the rest of the longer ones. A
# part with few rows costs two or three times as much per row, so no prompt gets a part of fewer tokens than this.
MIN_CHUNK = 16
# Where the oldest prompt can be completed in a step of at most this many times that limit, the step computes only whole
# prompts: a part of a prompt makes one more step for which all streams wait, and costs more than its rows.
WHOLE_STRETCH = 2.0
# A chunk of a prompt that runs into further cells makes all of its rows read them, so it ends before them if it then
# still has so many rows that another step costs less than what is saved (see CELLS_READ).
WITHIN_CELLS_MIN = 32


class Chunks:
    """How many prompt tokens a step takes, and of which prompts: so many that the streams beside them hardly notice.
    Pure. `streams`: whether each slot has a KV stream of its own."""

    def __init__(self, config: EngineConfig, cost: StepCost, *, streams: bool) -> None:
        self._config, self._cost, self._streams = config, cost, streams
        alone = config.prefill_tokens_alone
        self._sizes = [size for size in PREFILL_CHUNKS if size <= alone] or [alone]

    def divided(
        self, streams: Sequence[Request], prefilling: Sequence[Request], within_s: float, now_ns: int
    ) -> list[tuple[Request, int]]:
        """The prompts in prefill, each with the tokens that it gets in a step of `within_s` at most, beside these
        streams."""
        if not prefilling:
            return []
        patience_s = self._patience_s(streams, prefilling, now_ns)
        if streams and not all(request.ahead for request in prefilling):
            most = self._largest_whole(streams, prefilling, within_s, patience_s, now_ns)
            if chosen := whole_prompts(most, prefilling):
                return chosen
        new = sum(len(r.prompt) - r.cached_tokens for r in prefilling)
        chunk = self.size(len(streams), new, min(within_s, patience_s))
        if self._streams and not streams and len(prefilling) == 1:
            chunk = within_cells(chunk, prefilling[0])
        return divide(chunk, prefilling)

    def size(self, streams: int, new: int, patience_s: float = inf) -> int:
        """Prompt tokens for a step beside this many streams, which can wait `patience_s` for their next token. `new` is
        the total number of uncached tokens of the prompts."""
        if not streams:
            return self._config.prefill_tokens_alone if patience_s == inf else self._largest(0, patience_s)
        without = self._cost.predict(streams)
        if without is None:
            return min(self._config.prefill_tokens_first, self._config.prefill_tokens_alone)
        limit_s = self._limit_s(without)
        if patience_s < limit_s:
            return self._largest(streams, max(patience_s, BEHIND_STRETCH * without))
        chunk = self._largest(streams, limit_s)
        prompts_s = new / chunk * (self._cost.predict(streams + chunk) or 0.0)
        return max(chunk, self._largest(streams, min(PROMPT_SHARE * prompts_s, LONGER_MAX * limit_s)))

    def _limit_s(self, without_s: float) -> float:
        """The most seconds for a step with a chunk, where one without a chunk takes so many."""
        return max(self._config.inter_token_target_s, STRETCH_MAX * without_s)

    def _largest_whole(
        self,
        streams: Sequence[Request],
        prefilling: Sequence[Request],
        within_s: float,
        patience_s: float,
        now_ns: int,
    ) -> int:
        """The most tokens for a step of whole prompts; 0 if its cost is not known. Beside streams that cannot wait for
        longer it takes the usual limit; those of a higher class than all prompts keep their pace."""
        without_s = self._cost.predict(len(streams))
        if without_s is None:
            return 0
        limit_s = self._limit_s(without_s)
        kept_s = self._spare_s(streams, min(request.priority for request in prefilling), now_ns)
        longest_s = min(max(limit_s, patience_s), WHOLE_STRETCH * limit_s)
        return self._largest(len(streams), min(longest_s, kept_s, within_s))

    def _patience_s(self, streams: Sequence[Request], prefilling: Sequence[Request], now_ns: int) -> float:
        """The most seconds that the next step may take without making a stream fall behind its pace, which does not
        count beside an urgent prompt of the same class or a higher one. If nobody waits for the prompts, every stream
        beside them counts as behind."""
        if all(request.ahead for request in prefilling):
            return 0.0 if streams else inf
        if not any(request.pace_s for request in streams):
            return inf
        return self._spare_s(streams, self._urgent(len(streams), prefilling, now_ns), now_ns)

    def _spare_s(self, streams: Sequence[Request], beside: Priority | None, now_ns: int) -> float:
        """The most seconds that the next step may take without making a stream of a higher class than `beside`, or of
        any without one, fall behind its pace. A pace that this machine cannot keep even without prefill does not count.
        """
        alone_s = self._cost.predict(len(streams))
        if alone_s is None:
            return inf
        paced = [r for r in streams if (r.pace_s or 0.0) > alone_s and (beside is None or r.priority < beside)]
        return min((request.spare_s(now_ns) for request in paced), default=inf)

    def _urgent(self, streams: int, prefilling: Sequence[Request], now_ns: int) -> Priority | None:
        """The highest class of the prompts that can still be on time, but only if they are prefilled soon, the earliest
        due time first."""
        urgent, tokens = [], 0
        for request in sorted((r for r in prefilling if r.due_ns), key=attrgetter("due_ns")):
            tokens += request.remaining
            needed_s = self._cost.predict(streams + tokens) or 0.0
            left_s = ((request.due_ns or 0) - now_ns) / 1e9
            if URGENT_SHARE * left_s < needed_s <= left_s:
                urgent.append(request.priority)
        return min(urgent, default=None)

    def _largest(self, streams: int, limit_s: float) -> int:
        """The largest chunk that keeps a step within `limit_s`, or else the smallest."""
        fits = bisect_left(self._sizes, -limit_s, key=lambda chunk: -(self._cost.predict(streams + chunk) or 0.0))
        return self._sizes[min(fits, len(self._sizes) - 1)]


def within_cells(chunk: int, request: Request) -> int:
    """The chunk of a prompt that is computed alone, or less if it does not complete the prompt: see CELLS_READ."""
    within = chunk - (request.computed + chunk) % CELLS_READ
    return within if chunk < request.batchable and within >= WITHIN_CELLS_MIN else chunk


def whole_prompts(budget: int, prefilling: Sequence[Request]) -> list[tuple[Request, int]]:
    """The prompts that can be completed with so many tokens: the one that has been running longest, then the shortest
    first. None if that one cannot: it would never be its turn. Higher classes come first."""
    first = _oldest(prefilling)
    chosen = []
    for request in sorted(prefilling, key=lambda r: (r is not first, r.priority, r.batchable)):
        if request.batchable > budget:
            break
        chosen.append((request, request.batchable))
        budget -= request.batchable
    return chosen


def divide(budget: int, prefilling: Sequence[Request]) -> list[tuple[Request, int]]:
    """Divide a step's prompt tokens: half to the request that has been running longest, so that it always progresses;
    the rest to the shortest first, so that no request queues behind another's long prompt. Higher classes come first.

    Tokens left over go to the oldest request too. A remainder below MIN_CHUNK is given to no other request, unless it
    completes its prompt."""
    first = _oldest(prefilling)
    given = {first: min(first.batchable, max(1, budget // 2))}
    left = budget - given[first]
    for request in sorted(prefilling, key=lambda r: (r.priority, r.batchable)):
        wanted = request.batchable - given.get(request, 0)
        more = min(wanted, left)
        if more == wanted or more >= MIN_CHUNK or request is first:
            given[request] = given.get(request, 0) + more
            left -= more
    given[first] += min(first.batchable - given[first], left)
    shares = [(request, whole(request, tokens)) for request, tokens in given.items()]
    return [(request, tokens) for request, tokens in shares if tokens]


def _oldest(prefilling: Sequence[Request]) -> Request:
    """Of the highest class. Requests are in order of admission."""
    return min(prefilling, key=attrgetter("priority"))


def whole(request: Request, tokens: int) -> int:
    """The tokens to take. An exact request takes fewer where it would otherwise compute, or be left with, a single
    prompt row. A picture whose rows attend to each other is taken whole."""
    if tokens and (picture := request.current_picture) is not None and picture.tokens.bidirectional:
        return request.batchable
    if not request.exact or tokens == request.batchable:
        return tokens
    tokens -= int(request.batchable - tokens < EXACT_ROWS_MIN)
    return tokens if tokens >= EXACT_ROWS_MIN else 0
