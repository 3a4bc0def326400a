"""How many cores other programs leave to this process: the time that was idle or its own. Linux; elsewhere unknown.

In a container the kernel's file counts the processors of the whole machine, so only those count that this process may
use, and a quota limits it whatever is idle: of that, it has what others in the same group do not use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import perf_counter, process_time

from inference.cores import MOUNT, OWN, affinity, control_groups, number_in, quota_of, text_of

# Of a window. The kernel counts in hundredths of a second, and reading its file takes some 50 microseconds, but
# milliseconds with hundreds of processors. Windows are longer there: at most so much of the time is spent on it.
WINDOW_S, COST_MAX = 0.5, 0.001
# Sandboxes have the file, but nothing counts in it.
COUNTED_MIN = 0.5
STAT = Path("/proc/stat")
_STATES, _IDLE = slice(0, 8), slice(3, 5)  # of a line: user to stolen time; idle, and idle during input or output


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Counters at one moment, in seconds of processor time. `counted_s`: in any state, idle or not, of the processors
    that this process may use. `groups_s`: of each control group that has a quota."""

    at_s: float
    idle_s: float
    counted_s: float
    own_s: float
    groups_s: Sequence[float] = ()


def cores_left(before: CpuTimes, after: CpuTimes, processors: int, quotas: Sequence[float] = ()) -> float | None:
    """The average between two moments; None if the kernel does not count. Pure."""
    passed_s, own_s = after.at_s - before.at_s, after.own_s - before.own_s
    if passed_s <= 0 or after.counted_s - before.counted_s < COUNTED_MIN * processors * passed_s:
        return None
    left = (after.idle_s - before.idle_s + own_s) / passed_s
    for quota, earlier_s, later_s in zip(quotas, before.groups_s, after.groups_s, strict=True):
        left = min(left, quota - (later_s - earlier_s - own_s) / passed_s)
    return max(0.0, left)


class CoreMeter:
    def __init__(self, stat: Path = STAT, mount: Path = MOUNT, own: Path = OWN) -> None:
        self._stat = stat
        self._names = {f"cpu{number}" for number in affinity()}
        limited = [(group, quota_of(group)) for group in control_groups("cpu", mount, own)]
        self._groups = [group for group, quota in limited if quota < inf]
        self._quotas = [quota for _, quota in limited if quota < inf]
        self._before: CpuTimes | None = None
        self._window_s = WINDOW_S

    def left(self, now_s: float) -> float | None:
        """Cores that other programs left in the window that has just ended; None if none has."""
        if self._before and now_s - self._before.at_s < self._window_s:
            return None
        began_s = perf_counter()
        before, self._before = self._before, self._read(now_s)
        self._window_s = max(WINDOW_S, (perf_counter() - began_s) / COST_MAX)
        return cores_left(before, self._before, len(self._names), self._quotas) if before else None

    def _read(self, now_s: float) -> CpuTimes:
        lines = [line.split() for line in text_of(self._stat).splitlines() if line.startswith("cpu")]
        mine = [list(map(int, fields[1:])) for fields in lines if fields[0] in self._names]
        ticks = os.sysconf("SC_CLK_TCK")
        idle_s, counted_s = (sum(sum(times[states]) for times in mine) / ticks for states in (_IDLE, _STATES))
        return CpuTimes(now_s, idle_s, counted_s, process_time(), [_used_s(group) for group in self._groups])


def _used_s(group: Path) -> float:
    fields = text_of(group / "cpu.stat").split()
    if "usage_usec" in fields:
        return int(fields[fields.index("usage_usec") + 1]) / 1e6
    return (number_in(group / "cpuacct.usage") or 0) / 1e9
