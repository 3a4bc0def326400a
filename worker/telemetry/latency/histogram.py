"""Histograms of times with logarithmic buckets, several encoded in one byte string; byte strings are merged by
concatenation. Pure.

Masson, Rim and Lee 2019, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees": every
bucket is 2 % wider than the one before it, so a percentile of any set of values is known to 1 %.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

GROWTH = 1.02  # from bucket to bucket; the midpoint of a bucket is at most 1 % off
LEAST_MS = 0.001  # everything below is one bucket
BUCKET_MAX = 1200  # 5.8 hours: everything above is one bucket
AMOUNT = 65535  # in place of a bucket number: a sum
_WIDTH = BUCKET_MAX + 2  # of a histogram in memory; the last column is for sums
_LOG_GROWTH = math.log(GROWTH)
_ENTRY = struct.Struct(">IHI")
_ENTRIES = np.dtype([("key", ">u4"), ("bucket", ">u2"), ("count", ">u4")])


def bucket(ms: float) -> int:
    return min(BUCKET_MAX, max(0, math.ceil(math.log(max(ms, LEAST_MS) / LEAST_MS) / _LOG_GROWTH)))


def value_ms(index: int) -> float:
    """The value that represents all values of a bucket."""
    return LEAST_MS * GROWTH**index * 2 / (1 + GROWTH)


@lru_cache(maxsize=1024)
def key(measure: str) -> int:
    """The key of a measure in the encoding: 32 bits of a hash of its name; there are a few dozen names."""
    return int.from_bytes(hashlib.md5(measure.encode(), usedforsecurity=False).digest()[:4])


def encode(counts: Mapping[tuple[str, int], int]) -> bytes:
    """Encode a mapping from (measure, bucket or AMOUNT) to counts."""
    return b"".join(_ENTRY.pack(key(measure), index, count) for (measure, index), count in counts.items())


class Tally:
    """The contents of concatenated byte strings, by measure."""

    def __init__(self, pieces: bytes) -> None:
        entries = np.frombuffer(pieces, _ENTRIES)
        keys, rows = np.unique(entries["key"], return_inverse=True)
        columns = np.minimum(entries["bucket"], _WIDTH - 1).astype(np.int64)
        sums = np.bincount(rows * _WIDTH + columns, weights=entries["count"], minlength=len(keys) * _WIDTH)
        self._counts: npt.NDArray[np.float64] = np.asarray(sums, np.float64).reshape(-1, _WIDTH)
        self._rows = {int(each): row for row, each in enumerate(keys)}

    def amount(self, measure: str) -> int:
        """A sum, or the number of values."""
        row = self._rows.get(key(measure))
        return 0 if row is None else int(self._counts[row].sum())

    def percentiles(self, quantiles: Sequence[float], *measures: str) -> list[float | None]:
        """Milliseconds, over the values of all these measures; None without values."""
        rows = [self._rows[key(measure)] for measure in measures if key(measure) in self._rows]
        upto = np.cumsum(self._counts[rows, :-1].sum(axis=0))
        if not rows or not upto[-1]:
            return [None] * len(quantiles)
        ranks = np.asarray(quantiles) * (upto[-1] - 1)
        return [round(value_ms(int(index)), 3) for index in np.searchsorted(upto, ranks, side="right")]
