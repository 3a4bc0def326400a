"""What a step costs, learned from the steps before: decides how much prompt fits beside running streams."""

from __future__ import annotations

SMOOTHING = 0.2  # weight of the newest step


class StepCost:
    """Pure. Seconds per row by the power of two of the rows, because kernels take rows in groups."""

    def __init__(self) -> None:
        self._per_row: dict[int, float] = {}

    def observe(self, rows: int, seconds: float) -> None:
        size = rows.bit_length()
        known = self._per_row.setdefault(size, seconds / rows)
        self._per_row[size] = known + SMOOTHING * (seconds / rows - known)

    def predict(self, rows: int) -> float | None:
        """Seconds for a step of that many rows; None while nothing comparable was seen.

        A size not seen yet is taken to cost per row what the nearest smaller one does, which is more than it will.
        """
        sizes = [size for size in self._per_row if size <= rows.bit_length()]
        return self._per_row[max(sizes)] * rows if sizes else None
