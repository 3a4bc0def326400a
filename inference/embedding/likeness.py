"""What an embedding model makes of one text: it tells two models of one name apart, but not a model from the same one
quantised or on another machine, whose vectors can be compared. Pure.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TEXT = "Seven grey herons stood in the shallow water while the ferry crossed to the old harbour."
# Cosine of TEXT by the bundled model as it is, in Q8_0, and quantised further: Q6_K 0.999, Q4_K_M 0.99, Q3_K_M 0.98.
ALIKE_MIN = 0.95
SCALE = 127


def likeness(vector: NDArray[np.float32]) -> bytes:
    """Of the unit vector of TEXT: an int8 for each dimension."""
    steps: NDArray[np.int8] = np.round(vector / np.abs(vector).max() * SCALE).astype(np.int8)
    return steps.tobytes()


def alike(one: bytes, other: bytes) -> bool:
    """Whether they are of one model."""
    if len(one) != len(other):
        return False
    a, b = (np.frombuffer(each, np.int8).astype(np.float64) for each in (one, other))
    return bool(a @ b >= ALIKE_MIN * np.linalg.norm(a) * np.linalg.norm(b))
