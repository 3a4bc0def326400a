"""From the vectors of a text's tokens to what search stores of them. Pure.

A passage keeps one unit vector (the mean of its tokens) and int8 vectors of overlapping token windows; a query keeps
one unit vector per token. Comparing the two is late interaction (ColBERT's MaxSim) at a twentieth of its storage, by
windows instead of tokens and one byte instead of four.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

WINDOW_TOKENS = 12
WINDOW_STRIDE = 6
_EPSILON = 1e-9  # keeps an all-zero vector zero
# Computes a text's unit vector from the vectors of its tokens.
Pool: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]
# Its vector identifies a model: see `likeness`.
REFERENCE_TEXT = "Seven grey herons stood in the shallow water while the ferry crossed to the old harbour."
# Cosine between its vectors by the bundled model in Q8_0, as shipped, and requantised: Q6_K 0.999, Q4_K_M 0.99, Q3_K_M
# 0.98.
ALIKE_MIN = 0.95
LIKENESS_STEPS = 127  # of an int8, on either side of zero


class Windows(NamedTuple):
    """The unit vector of window i is approximately vectors[i] * scales[i]."""

    vectors: NDArray[np.int8]  # [windows, dimensions]
    scales: NDArray[np.float16]  # [windows]


class PassageVectors(NamedTuple):
    vector: NDArray[np.float32]  # unit, [dimensions]
    windows: NDArray[np.int8]
    scales: NDArray[np.float16]


class QueryVectors(NamedTuple):
    vector: NDArray[np.float32]  # unit, [dimensions]
    tokens: NDArray[np.float32]  # unit rows, [tokens, dimensions]


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale to length 1 along the last axis."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / (lengths + _EPSILON), np.float32)


def mean_vector(tokens: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean pooling including [CLS] and [SEP], as encoders like MiniLM, E5 and GTE are trained."""
    return unit(tokens.mean(axis=0))


def first_vector(tokens: NDArray[np.float32]) -> NDArray[np.float32]:
    """[CLS] pooling, as encoders like BGE are trained."""
    return unit(tokens[0])


def passage_vectors(tokens: NDArray[np.float32], pool: Pool = mean_vector) -> PassageVectors:
    """`tokens` is [tokens, dimensions] with [CLS] first and [SEP] last; a text has at least one window."""
    words = _words(tokens)
    starts = range(0, max(1, len(words) - WINDOW_TOKENS + WINDOW_STRIDE), WINDOW_STRIDE)
    windows = unit(np.stack([words[start : start + WINDOW_TOKENS].mean(axis=0) for start in starts]))
    scales = (np.abs(windows).max(axis=1) / 127).astype(np.float16)
    steps = windows / np.maximum(scales.astype(np.float32), _EPSILON)[:, None]
    return PassageVectors(pool(tokens), np.clip(np.round(steps), -127, 127).astype(np.int8), scales)


def query_vectors(tokens: NDArray[np.float32], pool: Pool = mean_vector) -> QueryVectors:
    return QueryVectors(pool(tokens), unit(_words(tokens)))


def _words(tokens: NDArray[np.float32]) -> NDArray[np.float32]:
    return tokens[1:-1] if len(tokens) > 2 else tokens


def likeness(vector: NDArray[np.float32]) -> bytes:
    """Identifies a model by its unit vector of REFERENCE_TEXT: an int8 per dimension.

    Distinguishes two models of the same name, but not a model from its quantisations or from itself on another machine,
    whose vectors are comparable.
    """
    steps: NDArray[np.int8] = np.round(vector / np.abs(vector).max() * LIKENESS_STEPS).astype(np.int8)
    return steps.tobytes()


def alike(one: bytes, other: bytes) -> bool:
    """Whether two likenesses are of the same model."""
    if len(one) != len(other):
        return False
    a, b = (np.frombuffer(each, np.int8).astype(np.float64) for each in (one, other))
    return bool(a @ b >= ALIKE_MIN * np.linalg.norm(a) * np.linalg.norm(b))
