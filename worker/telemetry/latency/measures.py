"""The measurements of a finished turn. Pure.

A response has `duration`, `ttft`, `ttfa`, `tpot` and `span:<name>` in milliseconds, and adds up `status:<status>`,
`judged`, `within`, `prompt_tokens`, `cached_tokens`, `output_tokens`, `drafted`, `accepted` and `miss:<cause>`. Other
calls, such as embeddings, have `call` and its spans. A rejected request has `turned_away` instead of `duration`: a
rejection takes a millisecond, which would distort the duration of responses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from worker.runs.record import TurnRecord
from worker.telemetry.latency.histogram import AMOUNT, bucket, encode
from worker.telemetry.latency.slice import COMPLETED, LATE, MINUTE_S, NOT_ANSWERED, length_of

SPAN = "span:"
STATUS = "status:"
MISS = "miss:"
SPAN_NAMES_MAX = 64  # tools name their spans; beyond this number they share one
OTHER_SPAN = "other"

Counts: TypeAlias = Counter[tuple[str, int]]  # the input of `encode`


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    at: datetime
    surface: str
    model: str
    agent: str


@dataclass(frozen=True, slots=True)
class Facts:
    """The other dimensions of a slice; empty where one does not apply."""

    key: str
    status: str
    cache: str
    length: str

    @classmethod
    def of(cls, record: TurnRecord) -> Facts:
        is_late = record.status == COMPLETED and record.within_target is False
        status = LATE if is_late else record.status
        return cls(key_of(record), status, record.cache or "", length_of(record.prompt.total) or "")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the tables latency and latency_slices, without tenant, resolution and worker."""

    whole: Sequence[tuple[datetime, str, str, str, bytes]]
    slices: Sequence[tuple[datetime, str, str, str, str, str, str, str, bytes]]


def key_of(record: TurnRecord) -> str:
    """Embeddings and the like record it in their trace only."""
    return record.key or str(record.trace.attributes.get("firsttoken.key", ""))


class Measures:
    """Remembers the names of spans, so that made-up ones cannot fill the tables."""

    def __init__(self) -> None:
        self.span_names: set[str] = {OTHER_SPAN}

    def rows(self, records: Iterable[TurnRecord]) -> Rows:
        """One row for each cell; coarse rows in the order in which every worker writes them, so that no two
        deadlock."""
        slices: dict[tuple[Cell, Facts], Counts] = {}
        for record in records:
            at = datetime.fromtimestamp(record.trace.started_at // MINUTE_S * MINUTE_S, UTC)
            cell = Cell(at, record.surface, record.model, record.agent)
            counts = slices.setdefault((cell, Facts.of(record)), Counter())
            for measure, ms in self._times(record):
                counts[measure, bucket(ms)] += 1
            for measure, amount in _amounts(record):
                counts[measure, AMOUNT] += amount
        whole: dict[Cell, Counts] = {}
        for (cell, _), counts in slices.items():
            whole.setdefault(cell, Counter()).update(counts)
        return Rows(
            [(*astuple(cell), encode(counts)) for cell, counts in sorted(whole.items())],
            [(*astuple(cell), *astuple(facts), encode(counts)) for (cell, facts), counts in slices.items()],
        )

    def _times(self, record: TurnRecord) -> Iterator[tuple[str, float]]:
        """(measure, milliseconds). Spans of one name are summed within a turn."""
        totals: dict[str, float] = {}
        for span in record.trace.spans:
            name = self._known(span.name)
            totals[name] = totals.get(name, 0.0) + span.duration_ms
        yield from ((SPAN + name, total_ms) for name, total_ms in totals.items())
        yield _whole(record), record.trace.duration_ms
        if record.response_id is not None:
            times = (("ttft", record.ttft_ms), ("ttfa", record.ttfa_ms), ("tpot", record.tpot_ms))
            yield from ((name, ms) for name, ms in times if ms is not None)

    def _known(self, name: str) -> str:
        if name not in self.span_names and len(self.span_names) > SPAN_NAMES_MAX:
            return OTHER_SPAN
        self.span_names.add(name)
        return name


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
