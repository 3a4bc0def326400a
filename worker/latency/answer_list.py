"""The list of responses, filtered, searched, sorted and paged by the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from worker.latency.slice import COMPLETED, LATE, LENGTHS, Cache, Slice, equal
from worker.runs.record import HIT_SHARE

if TYPE_CHECKING:
    from migrations.pool import Connection

Order: TypeAlias = Literal["recent", "slowest", "first_token", "pace"]

COLUMNS: Mapping[Order, str] = {
    "recent": "started_at",
    "slowest": "duration_ms",
    "first_token": "ttft_ms",
    "pace": "tpot_ms",
}
CACHES: Mapping[Cache, str] = {
    "hit": f"prompt_tokens > 0 and cached_tokens >= {HIT_SHARE} * prompt_tokens",
    "partial": f"cached_tokens > 0 and cached_tokens < {HIT_SHARE} * prompt_tokens",
    "miss": "prompt_tokens > 0 and cached_tokens = 0",
}
CACHE_CLASS = "".join(["case ", *(f"when {test} then '{name}' " for name, test in CACHES.items()), "end"])
STAGES_MAX = 40  # spans of a row's small bar; a turn with more has many similar steps

# Only top-level spans: nested ones would count twice.
STAGES = f"""
(select jsonb_agg(jsonb_build_array(s.name, s.start_us, s.duration_us, s.lane) order by s.ordinal)
   from spans s
  where s.tenant_id = t.tenant_id and s.trace_id = t.id and s.parent is null and s.ordinal < {STAGES_MAX}) as stages
"""


@dataclass(frozen=True, slots=True)
class Search:
    """`start` and `end` are Unix seconds; `after` the id of the last row of the previous page; `text` the prefix of a
    trace id, or the id of a response, a conversation or an API key."""

    start: float
    end: float
    order: Order = "recent"
    limit: int = 50
    after: str | None = None
    slower_ms: float | None = None
    text: str | None = None
    slice: Slice = field(default_factory=Slice)

    def sql(self) -> tuple[str, list[Any]]:
        """The statement and its parameters."""
        given: list[Any] = [datetime.fromtimestamp(self.start, UTC), datetime.fromtimestamp(self.end, UTC)]
        conditions = ["started_at >= $1 and started_at < $2"]

        def add(condition: str, value: Any) -> None:
            given.append(value)
            conditions.append(condition.format(f"${len(given)}"))

        sliced, values = _conditions(self.slice, len(given) + 1)
        conditions[0] += sliced
        given += values
        if self.slower_ms is not None:
            add("ttft_ms >= {}", self.slower_ms)
        if self.text is not None:
            add(_named(self.text), self.text)
        column = COLUMNS[self.order]
        conditions.append(f"{column} is not null")
        if self.after is not None:
            add(f"({column}, id) < (select {column}, id from traces where id = {{}} limit 1)", self.after)
        given.append(self.limit)
        return (
            "select tenant_id, id, started_at, duration_ms, ttft_ms, tpot_ms, status, surface, model, agent, "
            "response_id, conversation_id, attributes, within_target, prompt_tokens, cached_tokens, output_tokens, "
            "worker, "
            f"{STAGES} "
            f"from traces t where {' and '.join(conditions)} order by {column} desc, id desc limit ${len(given)}",
            given,
        )


async def rows(connection: Connection, search: Search) -> list[dict[str, Any]]:
    statement, given = search.sql()
    return [dict(row) for row in await connection.fetch(statement, *given)]


def _conditions(slice: Slice, first: int) -> tuple[str, list[Any]]:
    """The conditions of the roll-ups, computed from a single response: a late one completed, but missed its targets."""
    is_late = slice.status == LATE
    sql, given = equal(slice.named | {"status": COMPLETED if is_late else slice.status}, first)
    if is_late:
        sql += " and not within_target"
    if slice.cache is not None:
        sql += f" and {CACHES[slice.cache]}"
    if slice.length is not None:
        least, above = LENGTHS[slice.length]
        sql += f" and prompt_tokens >= {least} and prompt_tokens < {above}"
    return sql, given


def _named(text: str) -> str:
    if text.startswith("resp_"):
        return "response_id = {}"
    if text.startswith("conv_"):
        return "conversation_id = {}"
    if text.startswith("key_"):
        return "key_id = {}"
    return 'id collate "C" >= {0} and id collate "C" < {0} || \'~\''
