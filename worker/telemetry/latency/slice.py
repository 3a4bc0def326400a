"""What a view of the latencies is about: answers of whom, of when, and which of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from migrations.pool import Connection, Database
from worker.auth.principal import Principal

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


@dataclass(frozen=True, slots=True)
class Visibility:
    tenant_id: UUID | None  # None: all tenants

    @classmethod
    def of(cls, principal: Principal) -> Visibility:
        return cls(None if principal.is_operator else principal.tenant_id)

    @asynccontextmanager
    async def open(self, database: Database) -> AsyncIterator[Connection]:
        view = database.operator() if self.tenant_id is None else database.tenant(self.tenant_id)
        async with view as connection:
            yield connection


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
