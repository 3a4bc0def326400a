"""The measurements of a finished turn, histograms of them, and the slice of the answers that a view is about.

A response has `duration`, `ttft`, `ttfa`, `tpot` and `span:<name>` in milliseconds, and adds up `status:<status>`,
`judged`, `within`, `prompt_tokens`, `cached_tokens`, `output_tokens`, `drafted`, `accepted` and `miss:<cause>`. Other
calls, such as embeddings, have `call` and its spans. A rejected request has `turned_away` instead of `duration`: a
rejection takes a millisecond, which would distort the duration of responses.

Histograms of times have logarithmic buckets, several are encoded in one byte string, and byte strings are merged by
concatenation. Masson, Rim and Lee 2019, "DDSketch: a fast and fully-mergeable quantile sketch with relative-error
guarantees": every bucket is 2 % wider than the one before it, so a percentile of any set of values is known to 1 %.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt

from migrations.pool import Connection, Database
from worker.auth.principal import Principal
from worker.runs.record import SpanNames, TurnRecord

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
MINUTES_KEPT_S = 48 * HOUR_S  # by forget_latency, with an hour to spare
HOURS_KEPT_S = 32 * DAY_S
POINTS_MAX = 180  # more than a chart on a phone has pixels for
STEPS_S = (MINUTE_S, 5 * MINUTE_S, 15 * MINUTE_S, HOUR_S, 6 * HOUR_S, DAY_S, 7 * DAY_S)


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From `start` up to `end`, in Unix seconds, in steps of `step_s`: both are multiples of it."""

    start: int
    end: int
    step_s: int

    @classmethod
    def of(cls, start: float, end: float, now: float) -> TimeRange:
        """The smallest range that contains both moments, with the finest steps that are stored and can be drawn."""
        kept_s = MINUTE_S if start >= now - MINUTES_KEPT_S else HOUR_S if start >= now - HOURS_KEPT_S else DAY_S
        length_s = max(1.0, end - start)
        step_s = next((s for s in STEPS_S if s >= kept_s and length_s / s <= POINTS_MAX), STEPS_S[-1])
        return cls(_floor(start, step_s), -_floor(-end, step_s), step_s)

    def parts(self, *, whole: bool) -> tuple[tuple[int, int], tuple[int, int]]:
        """The hours and the days that are read as one row each, as (first, end). Minutes are read outside these hours,
        hours outside these days. For points (`whole` is False) no row is coarser than a step."""
        hours = self._part(HOUR_S) if whole or self.step_s >= HOUR_S else (self.end, self.end)
        days = self._part(DAY_S) if whole or self.step_s >= DAY_S else (self.end, self.end)
        return hours, days

    def _part(self, unit_s: int) -> tuple[int, int]:
        first, end = -_floor(-self.start, unit_s), _floor(self.end, unit_s)
        return (first, end) if first < end else (self.end, self.end)


def _floor(at: float, unit_s: int) -> int:
    return int(at // unit_s) * unit_s


def visible(database: Database, principal: Principal) -> AbstractAsyncContextManager[Connection]:
    """Operators see all tenants; others see their own."""
    return database.operator() if principal.is_operator else database.tenant(principal.tenant_id)


Status: TypeAlias = Literal["completed", "late", "incomplete", "failed", "cancelled", "refused", "invalid"]
Cache: TypeAlias = Literal["hit", "partial", "miss"]
Length: TypeAlias = Literal["short", "medium", "long", "huge"]

COMPLETED: Final = "completed"
LATE: Final = "late"  # completed, but missed its targets
NOT_ANSWERED: Final = ("refused", "invalid")  # nothing was generated
# By the tokens of the first prompt: a question alone, one with instructions and passages, a conversation, a book.
LENGTHS: Mapping[Length, tuple[int, int]] = {
    "short": (1, 512),
    "medium": (512, 2048),
    "long": (2048, 8192),
    "huge": (8192, 2**31 - 1),
}


@dataclass(frozen=True, slots=True)
class Slice:
    """None means all."""

    surface: str | None = None
    model: str | None = None
    agent: str | None = None
    tenant: UUID | None = None
    key: str | None = None
    worker: str | None = None
    status: Status | None = None
    cache: Cache | None = None
    length: Length | None = None

    @property
    def is_coarse(self) -> bool:
        """Whether the table `latency` has all of its dimensions."""
        return (self.key, self.worker, self.status, self.cache, self.length) == (None,) * 5

    @property
    def has_costs(self) -> bool:
        """Whether the table `spending` has all of its dimensions."""
        return (self.worker, self.status, self.cache, self.length) == (None,) * 4

    def conditions(self, first: int) -> tuple[str, list[Any]]:
        """Appended to conditions on a roll-up, with their parameters, numbered from `first`."""
        named = self.named | {"cache": self.cache, "length": self.length}
        if self.status == COMPLETED:
            sql, given = equal(named, first)
            return f"{sql} and status in ('{COMPLETED}', '{LATE}')", given
        return equal(named | {"status": self.status}, first)

    @property
    def named(self) -> dict[str, Any]:
        """The columns that roll-ups and single responses have in common."""
        return {
            "surface": self.surface,
            "model": self.model,
            "agent": self.agent,
            "tenant_id": self.tenant,
            "key_id": self.key,
            "worker": self.worker,
        }


def equal(columns: Mapping[str, Any], first: int) -> tuple[str, list[Any]]:
    """Conditions on columns, except those whose value is None."""
    given = [(column, value) for column, value in columns.items() if value is not None]
    sql = "".join(f" and {column} = ${number}" for number, (column, _) in enumerate(given, first))
    return sql, [value for _, value in given]


def length_of(prompt_tokens: int) -> Length | None:
    """None if no prompt was processed."""
    return next((name for name, (least, above) in LENGTHS.items() if least <= prompt_tokens < above), None)


GROWTH = 1.02  # from bucket to bucket; the midpoint of a bucket is at most 1 % off
LEAST_MS = 0.001  # everything below is one bucket
BUCKET_MAX = 1200  # 5.8 hours: everything above is one bucket
AMOUNT = 65535  # in place of a bucket number: a sum
_WIDTH = BUCKET_MAX + 2  # of a histogram in memory; the last column is for sums
_LOG_GROWTH = math.log(GROWTH)
_ENTRY = struct.Struct(">IHI")
_ENTRIES = np.dtype([("key", ">u4"), ("bucket", ">u2"), ("count", ">u4")])


def bucket(ms: float) -> int:
    return min(BUCKET_MAX, math.ceil(math.log(ms / LEAST_MS) / _LOG_GROWTH)) if ms > LEAST_MS else 0


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
        """Milliseconds, over the values of all these measures; None without values. By the nearest rank, the least
        value that at least such a share of all does not exceed: of a few values, p95 is the slowest."""
        rows = [self._rows[key(measure)] for measure in measures if key(measure) in self._rows]
        upto = np.cumsum(self._counts[rows, :-1].sum(axis=0))
        if not rows or not upto[-1]:
            return [None] * len(quantiles)
        ranks = np.maximum(1, np.ceil(np.asarray(quantiles) * upto[-1]))
        return [round(value_ms(int(index)), 3) for index in np.searchsorted(upto, ranks)]


SPAN = "span:"
STATUS = "status:"
MISS = "miss:"

Counts: TypeAlias = defaultdict[tuple[str, int], int]  # the input of `encode`


class Cell(NamedTuple):
    at: datetime
    surface: str
    model: str
    agent: str


class Facts(NamedTuple):
    """The other dimensions of a slice; empty where one does not apply."""

    key: str
    status: str
    cache: str
    length: str

    @classmethod
    def of(cls, record: TurnRecord) -> Facts:
        is_late = record.status == COMPLETED and record.within_target is False
        status = LATE if is_late else record.status
        return cls(record.key_id, status, record.cache or "", length_of(record.prompt.total) or "")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the tables latency and latency_slices, without tenant, resolution and worker; and the names of spans in
    the table span_names."""

    whole: Sequence[tuple[datetime, str, str, str, bytes]]
    slices: Sequence[tuple[datetime, str, str, str, str, str, str, str, bytes]]
    span_names: frozenset[str]


class Measures:
    """What the tables store of finished turns."""

    def __init__(self) -> None:
        self._span_names = SpanNames()

    def rows(self, records: Iterable[TurnRecord]) -> Rows:
        """One row for each cell; coarse rows in the order in which every worker writes them, so that no two
        deadlock. One call at a time."""
        counted: defaultdict[tuple[Cell, Facts], Counts] = defaultdict(lambda: defaultdict(int))
        for record in records:
            at = datetime.fromtimestamp(record.trace.started_at // MINUTE_S * MINUTE_S, UTC)
            cell = Cell(at, record.surface, record.model, record.agent)
            counts = counted[cell, Facts.of(record)]
            for measure, ms in self._times(record):
                counts[measure, bucket(ms)] += 1
            for measure, amount in _amounts(record):
                counts[measure, AMOUNT] += amount
        slices = [(cell, facts, encode(counts)) for (cell, facts), counts in counted.items()]
        whole: defaultdict[Cell, bytes] = defaultdict(bytes)
        for cell, _, measures in slices:
            whole[cell] += measures
        return Rows(
            [(*cell, measures) for cell, measures in sorted(whole.items())],
            [(*cell, *facts, measures) for cell, facts, measures in slices],
            frozenset(self._span_names.met),
        )

    def _times(self, record: TurnRecord) -> Iterator[tuple[str, float]]:
        """(measure, milliseconds). Spans of one name are summed within a turn."""
        totals: dict[str, float] = {}
        for span in record.trace.spans:
            name = self._span_names.known(span.name)
            totals[name] = totals.get(name, 0.0) + span.duration_ms
        yield from ((SPAN + name, total_ms) for name, total_ms in totals.items())
        yield _whole(record), record.trace.duration_ms
        if record.response_id is not None:
            times = (("ttft", record.ttft_ms), ("ttfa", record.ttfa_ms), ("tpot", record.tpot_ms))
            yield from ((name, ms) for name, ms in times if ms is not None)


def _whole(record: TurnRecord) -> str:
    if record.response_id is None:
        return "call"
    return "turned_away" if record.status in NOT_ANSWERED else "duration"


def _amounts(record: TurnRecord) -> Iterator[tuple[str, int]]:
    if record.response_id is None:
        return
    prompt = record.prompt
    yield STATUS + record.status, 1
    amounts = (
        ("judged", int(record.within_target is not None)),
        ("within", int(record.within_target is True)),
        ("prompt_tokens", prompt.total),
        ("cached_tokens", prompt.cached),
        ("output_tokens", record.output_tokens),
        ("drafted", record.counted("decode", "drafted")),
        ("accepted", record.counted("decode", "accepted")),
    )
    for cause in record.miss_causes:
        yield MISS + cause, 1
    yield from ((name, amount) for name, amount in amounts if amount)
