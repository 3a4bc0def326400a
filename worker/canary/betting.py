"""Testing a mean by betting: evidence that is valid at any time, however often it is looked at.

If the mean of bounded values is at most `bound`, a bettor who stakes shares of a capital on larger values gains nothing
in expectation, so the capital reaches 1/alpha with probability at most alpha (Ville's inequality), whatever the
distribution of the values and whenever one stops. Waudby-Smith and Ramdas 2024, "Estimating means of bounded random
variables by betting", Journal of the Royal Statistical Society B 86(1): the mean of the capitals of fixed stakes, "grid
Kelly".
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]  # one dimension, between -1 and 1

# Shares of the largest possible stake. Small ones find small differences in many values, large ones large in few.
STAKES = np.array([0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95])
CAPITAL_LOG_MAX = 700.0  # within the range of a float: such evidence is more than enough
BISECTIONS = 16  # precise to 0.00003


def capital_against(values: Values, bound: float) -> float:
    """The maximum of the capital so far, starting at 1, when betting that the mean is larger than `bound`."""
    if not values.size:
        return 1.0
    stakes = STAKES / (1 + bound)
    logs = np.log1p(np.outer(stakes, values - bound)).cumsum(axis=1)
    means = np.exp(np.minimum(logs, CAPITAL_LOG_MAX)).mean(axis=0)
    return max(1.0, float(means.max()))


def interval(values: Values, alpha: float) -> tuple[float, float]:
    """A confidence sequence: contains the mean with a confidence of 1 - alpha, at all times simultaneously."""
    return _lowest(values, alpha / 2), -_lowest(-values, alpha / 2)


def _lowest(values: Values, alpha: float) -> float:
    low, high = -1.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if capital_against(values, middle) >= 1 / alpha else (low, middle)
    return low
