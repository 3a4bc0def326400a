"""How fast the error budget of an objective is spent, over several windows at once. Pure.

A burn rate of 1 spends the budget exactly; with an objective of 95 %, one turn in twenty may be late. The windows and
the rates at which to page somebody are those of "The Site Reliability Workbook" (Beyer et al. 2018, chapter 5): a long
window shows that the problem matters, a short one that it is still happening.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

SLICE_S = 60.0  # counts are aggregated per minute: 360 slices for a surface
WINDOWS_S: Mapping[str, float] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "6h": 21_600.0}
SURFACES_MAX = 64  # a configuration has fewer


class BurnRate:
    """Late and total turns by surface. `now_s` is monotonic."""

    def __init__(self, objective: float) -> None:
        """`objective`: the share of turns that must meet their targets, below 1."""
        self._allowed = 1.0 - objective
        self._slices: dict[str, deque[list[float]]] = {}  # [begin, turns, late turns], oldest first

    def add(self, surface: str, in_time: bool, now_s: float) -> None:
        if surface not in self._slices and len(self._slices) >= SURFACES_MAX:
            return
        slices = self._slices.setdefault(surface, deque())
        if not slices or now_s - slices[-1][0] >= SLICE_S:
            slices.append([now_s, 0, 0])
        slices[-1][1] += 1
        slices[-1][2] += not in_time
        while now_s - slices[0][0] > max(WINDOWS_S.values()):
            slices.popleft()

    def rates(self, now_s: float) -> Iterator[tuple[str, str, float]]:
        """(surface, window, rate); 0 without turns."""
        for surface, slices in list(self._slices.items()):
            for window, length_s in WINDOWS_S.items():
                counted = [each for each in list(slices) if now_s - each[0] <= length_s]
                turns, late = sum(each[1] for each in counted), sum(each[2] for each in counted)
                yield surface, window, late / turns / self._allowed if turns else 0.0
