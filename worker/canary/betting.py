"""Bets on a mean: evidence that counts at any moment one looks, however often one looks.

If the mean of bounded values is at most `bound`, nobody who stakes shares of a capital on larger values can expect to
gain, so the capital reaches 1/alpha with a probability of alpha at most (Ville's inequality), whatever the values are
distributed like and whenever one stops. Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by
betting", Journal of the Royal Statistical Society B 86(1): the mean of the capitals of fixed stakes, "grid Kelly".
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]  # one dimension, between -1 and 1

# Of all that can be lost at once. Small ones find small differences in many values, large ones large in few.
STAKES = np.array([0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95])
CAPITAL_LOG_MAX = 700.0  # of a float: such evidence is more than enough
BISECTIONS = 16  # to 0.00003


def capital_against(values: Values, bound: float) -> float:
    """The highest that the capital ever was, beginning with 1, of bets that the mean is larger than `bound`."""
    if not values.size:
        return 1.0
    stakes = STAKES / (1 + bound)
    logs = np.log1p(np.outer(stakes, values - bound)).cumsum(axis=1)
    means = np.exp(np.minimum(logs, CAPITAL_LOG_MAX)).mean(axis=0)
    return max(1.0, float(means.max()))


def interval(values: Values, alpha: float) -> tuple[float, float]:
    """Between which the mean lies with a confidence of 1 - alpha, at all times at once."""
    return _lowest(values, alpha / 2), -_lowest(-values, alpha / 2)


def _lowest(values: Values, alpha: float) -> float:
    low, high = -1.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if capital_against(values, middle) >= 1 / alpha else (low, middle)
    return low
