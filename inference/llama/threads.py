"""How many threads pay off for a step: measured while serving, because it depends on everything.

A small model decodes a row faster on one core than two threads can meet at the barriers between operations; a prompt of
hundreds of rows needs every core; two threads on the halves of one core may be slower than one; and a core that the
event loop, the database or another program uses reverses the result. So the options are compared in use, per size of
step, by steps that directly follow each other: a machine that gets slower or a context that gets longer affects both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import geometric_mean

# Shares of time that trying other options may cost. Fewer threads pay off where something else uses a core, which shows
# in the times of steps as well; that it is free again shows only if more threads are tried.
FEWER_SHARE, MORE_SHARE = 0.003, 0.006
STEPS_BETWEEN_TRIALS = 20  # at least, however close the options are
# A trial ends as soon as this many pairs of steps agree, and is decided by the mean if as many as PAIRS_MAX do not. Two
# are enough if both differ by more than a factor of CLEAR.
PAIRS_MIN, PAIRS_MAX, CLEAR = 3, 8, 1.5
FASTER = 0.97  # of the time, or less: a difference that is worth a change
WAITS_MAX = 16  # for steps that can be compared, because they have about as many rows
HOPELESS = 1.5  # a trial also ends at a step that takes this many times as long as usual
# Who takes this many times as long was stopped by what would have stopped any number of threads. Where cores that
# become free are noticed, nothing is lost by taking the times of trials for what they are, up to the second number.
STALL, STALL_NOTICED = 8, 64
SMOOTHING = 0.2  # weight of the newest step
# If consecutive steps each take so many times as long as usual, and together this many steps longer, something else
# uses a core.
SLOW, SLOW_BY, SLOW_STEPS_MIN = 1.3, 1.5, 2
SLOW_AGAIN_S = 3.0  # on a machine whose speed keeps changing, it is noticed only once in so many seconds
# If other programs leave so many more cores than they did, one has become free: more threads are tried at once,
# whatever it cost when it was taken. If they lose again, the next such trial waits twice as long.
FREED_CORES, FREED_AGAIN_S, FREED_AGAIN_MAX_S = 0.6, 1.0, 64.0


def thread_options(fewest: int, most: int, physical: int) -> list[int]:
    """Numbers of threads that are worth a try on a machine with so many physical cores, in ascending order. Where
    neighbours are compared, few comparisons lead from one end to the other."""
    options, half = {most, most - 1, physical, physical - 1}, most
    while half > 1:
        options |= {half := half // 2, 3 * half // 2}
    return sorted(option for option in options if fewest <= option <= most)


@dataclass(slots=True)
class _Trial:
    """A comparison of another option with the one in use, which take turns."""

    at: int
    pending: tuple[int, float] | None = None  # rows and seconds of its latest step
    ratios: list[float] = field(default_factory=list)  # of its steps to those of the option in use
    waits: int = 0  # for a step that can be compared
    rows: int = 0
    lost_s: float = 0.0

    @property
    def is_faster(self) -> bool | None:
        """None while that is unknown."""
        count, faster = len(self.ratios), sum(ratio < FASTER for ratio in self.ratios)
        if self.waits > WAITS_MAX:
            return False
        if count == PAIRS_MIN - 1 and max(self.ratios) * CLEAR < 1:
            return True
        if count < PAIRS_MAX and (count < PAIRS_MIN or faster not in (0, count)):
            return None
        return self.ratio < FASTER

    @property
    def ratio(self) -> float:
        return geometric_mean(self.ratios)

    def compare(self, rows: int, seconds: float) -> None:
        """With a step of the option in use."""
        assert self.pending
        rows_before, seconds_before = self.pending
        if 8 * abs(rows - rows_before) > rows:
            self.waits += 1
            return
        self.ratios.append((seconds_before / rows_before) / (seconds / rows))
        self.pending = None


@dataclass(slots=True)
class _Size:
    """What is known about steps of one size. Options are numbered; seconds are per row."""

    best: int
    usual_s: float = inf
    looks: int = 0
    trial: _Trial | None = None
    free: set[int] = field(default_factory=set)  # options whose next trial may cost whatever it costs
    tried: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # the number of the latest trial
    excess_s: dict[int, float] = field(default_factory=dict)  # of a step in the latest trial
    credit_s: float = 0.0  # what trying fewer threads may cost
    steps: int = 0  # since the latest trial
    slow: list[float] = field(default_factory=list)  # how much longer than usual the latest steps took, as shares
    noticed_s: float = -inf


class ThreadChooser:
    """Pure; it is told the time of every step. Steps are grouped by the power of two of their rows.

    `start` is the number of threads to begin with.
    """

    def __init__(self, options: Sequence[int], start: int = 0) -> None:
        self._options = sorted(set(options))
        self._start = max((at for at, option in enumerate(self._options) if option <= start), default=-1)
        self._sizes: dict[int, _Size] = {}
        self._most = len(self._options) - 1  # the option that no size exceeds while more threads wait for a core
        self._trials = 0
        self._now_s = self._longest_s = 0.0
        # What trying more threads may cost. It grows with time, not with steps: what made them slow may have passed.
        self._credit_s = 0.0
        # The fewest cores that others have left since a core that became free was last noticed.
        self._cores_min = inf
        self._freed_s, self._freed_again_s = -inf, FREED_AGAIN_S

    def notice(self, cores: float, now_s: float) -> None:
        """So many cores' worth of time were left to this process of late."""
        self._cores_min = min(self._cores_min, cores)
        fewer = [size for size in self._sizes.values() if size.best + 1 < len(self._options)]
        if not fewer or cores < self._cores_min + FREED_CORES or now_s < self._freed_s + self._freed_again_s:
            return
        self._cores_min, self._freed_s = cores, now_s
        self._freed_again_s = min(2 * self._freed_again_s, FREED_AGAIN_MAX_S)
        for size in fewer:
            size.free.add(size.best + 1)

    def choose(self, rows: int, now_s: float) -> int:
        """Threads for the next step of that many rows."""
        size = self._sizes.get(rows.bit_length()) or self._new(rows.bit_length())
        self._credit_s = min(self._credit_s + MORE_SHARE * (now_s - self._now_s), PAIRS_MIN * self._longest_s)
        self._now_s = now_s
        if size.trial is None and size.looks > 1 and (at := self._due(size, rows)) is not None:
            self._trials += 1
            size.trial, size.tried[at] = _Trial(at), self._trials
        trial = size.trial
        return self._options[trial.at if trial and not trial.pending else size.best]

    def observe(self, rows: int, threads: int, seconds: float) -> None:
        """Record the time of a step with the threads that `choose` returned."""
        size = self._sizes[rows.bit_length()]
        self._longest_s = max(self._longest_s, seconds)
        trial = size.trial
        if trial and not trial.pending:
            trial.pending = rows, seconds
            trial.rows += rows
            trial.lost_s += seconds - size.usual_s * rows
            if seconds > HOPELESS * size.usual_s * rows:
                self._decide(size, trial, faster=False)
            return
        self._learn(size, rows, seconds)
        if trial:
            trial.compare(rows, seconds)
            if (faster := trial.is_faster) is not None:
                self._decide(size, trial, faster=faster)

    def _new(self, number: int) -> _Size:
        """If all threads pay off for fewer rows, they do for more: trying fewer would only delay a prompt."""
        known = max((smaller for smaller in self._sizes if smaller < number), default=None)
        last = len(self._options) - 1
        if known is not None and not self._sizes[known].free and self._sizes[known].best == last:
            size = _Size(last)
        elif self._most < last:
            size = _Size(self._most)
        else:
            size = _Size(self._start if self._start >= 0 else last)
            size.free = self._neighbours(size.best)
        self._sizes[number] = size
        return size

    def _neighbours(self, at: int) -> set[int]:
        return {other for other in (at - 1, at + 1) if 0 <= other < len(self._options)}

    def _due(self, size: _Size, rows: int) -> int | None:
        """The option to try now, or None."""
        near = self._neighbours(size.best)
        size.free &= near
        if size.free:
            return max(size.free)
        at = min(near, key=lambda other: size.tried[other], default=None)
        if at is None or size.steps < STEPS_BETWEEN_TRIALS:
            return None
        stall = STALL if self._cores_min == inf else STALL_NOTICED
        excess_s = min(size.excess_s.get(at, size.usual_s), stall * size.usual_s)
        steps = 1 if excess_s > (HOPELESS - 1) * size.usual_s else PAIRS_MIN
        credit_s = self._credit_s if at > size.best else size.credit_s
        return at if credit_s >= steps * rows * excess_s else None

    def _learn(self, size: _Size, rows: int, seconds: float) -> None:
        """Record a step of the option in use."""
        each_s = seconds / rows
        size.looks += 1
        size.steps += 1
        size.credit_s += FEWER_SHARE * seconds
        size.slow = [*size.slow, each_s / size.usual_s - 1] if each_s > SLOW * size.usual_s else []
        is_slow = len(size.slow) >= SLOW_STEPS_MIN and sum(size.slow) >= SLOW_BY
        if is_slow and self._now_s - size.noticed_s > SLOW_AGAIN_S:
            size.noticed_s, size.usual_s, size.slow = self._now_s, each_s, []
            size.free = self._neighbours(size.best)
        elif size.looks <= 2:  # the first step of a size prepares what the others use
            size.usual_s = each_s
        else:
            size.usual_s += SMOOTHING * (min(each_s, SLOW * size.usual_s) - size.usual_s)

    def _decide(self, size: _Size, trial: _Trial, *, faster: bool) -> None:
        size.trial, size.steps = None, 0
        if trial.at in size.free:
            size.free.discard(trial.at)
        elif trial.at > size.best:  # all is spent: trials do not follow each other, and what a stall took is not owed
            self._credit_s = 0.0
        else:
            size.credit_s = 0.0
        size.excess_s[trial.at] = trial.lost_s / trial.rows
        if not faster:
            if trial.at > size.best and size.excess_s[trial.at] > STALL * size.usual_s:  # nor is any core free
                for other in self._sizes.values():
                    other.free.discard(other.best + 1)
            return
        if trial.at > size.best:
            self._freed_again_s = FREED_AGAIN_S
        onwards = 2 * trial.at - size.best
        size.excess_s[size.best] = -size.excess_s[trial.at]
        size.best = trial.at
        size.free = {onwards} & self._neighbours(size.best)
        waits = trial.ratio * STALL < 1  # threads wait for a core at each barrier, whatever the size of the step
        self._most = size.best if waits else max(self._most, size.best)
        if trial.ratio * SLOW < 1:  # the machine has changed, not only for steps of this size
            for number, other in self._sizes.items():
                if other.best > self._most:
                    self._sizes[number] = _Size(self._most)
                elif other.best != size.best:
                    other.free = self._neighbours(other.best)
