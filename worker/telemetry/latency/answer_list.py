"""The list of responses, filtered, searched, sorted and paged by the database; the content of one, only for
its own tenant; and those that were accepted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args
from uuid import UUID

from agents.store.responses import Answered
from migrations.pool import Connection, Database
from worker.runs.record import HIT_SHARE
from worker.telemetry.latency.measures import COMPLETED, LATE, LENGTHS, Cache, Slice, equal

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


QUESTION_CHARS = 160  # one line of a list
TEXT_CHARS = 4000  # of the arguments or the result of a tool; the conversation has the full text
CALLS_MAX = 64

# The user's last message. Truncated in the database: a question may be a book.
QUESTIONS = """
select r.id, left((select string_agg(part->>'text', ' ')
                     from jsonb_array_elements(
                         case when jsonb_typeof(asked->'content') = 'array' then asked->'content' else '[]' end) as part
                    where part->>'type' = 'input_text'), $3) as question
  from responses r
 cross join lateral (select value as asked
                       from jsonb_array_elements(r.input) with ordinality as each(value, position)
                      where value->>'type' = 'message' and value->>'role' = 'user'
                      order by position desc limit 1) as last
 where r.tenant_id = $1 and r.id = any($2)
"""

CALLS = """
select item->>'type' as type, item->>'call_id' as call_id, item->>'name' as name,
       left(item->>'arguments', $3) as arguments, left(item->>'output', $3) as output
  from responses r, jsonb_array_elements(r.body->'output') with ordinality as each(item, position)
 where r.tenant_id = $1 and r.id = $2 and item->>'type' in ('function_call', 'function_call_output')
 order by position
 limit $4
"""


async def questions_of(database: Database, tenant_id: UUID, response_ids: Sequence[str]) -> Mapping[str, str]:
    """By response id; responses that were not stored are left out."""
    if not response_ids:
        return {}
    rows = await database.rows(tenant_id, QUESTIONS, list(response_ids), QUESTION_CHARS)
    return {row["id"]: row["question"] for row in rows if row["question"]}


async def calls_of(database: Database, tenant_id: UUID, response_id: str) -> list[dict[str, Any]]:
    """The tool calls of a stored response, in their order: name, arguments and output as texts."""
    rows = await database.rows(tenant_id, CALLS, response_id, TEXT_CHARS, 2 * CALLS_MAX)
    outputs = {row["call_id"]: row["output"] for row in rows if row["type"] == "function_call_output"}
    return [
        {"name": row["name"], "arguments": row["arguments"], "output": outputs.get(row["call_id"])}
        for row in rows
        if row["type"] == "function_call"
    ]


Why: TypeAlias = Literal["up", "canary", "escalated"]
WHYS: tuple[Why, ...] = get_args(Why)

# First answers of conversations, whose complete context is stored with them. Nobody rated them down, and none of them
# says that it does not know, unless somebody rated that up.
ACCEPTED = """
with known as (
    select r.id, r.input, r.body, r.created_at, r.body->'metadata'->>'firsttoken:rating' as rating, t.attributes
      from responses r
      left join lateral (select attributes from traces
                          where tenant_id = $1 and response_id = r.id limit 1) t on true
     where r.tenant_id = $1 and r.status = 'completed' and r.previous_response_id is null
       and (r.conversation_id is null or not exists (
            select from responses before
             where before.tenant_id = r.tenant_id and before.conversation_id = r.conversation_id
               and (before.created_at, before.id) < (r.created_at, r.id)))
)
select id, input, body from known
 where rating is distinct from 'down'
   and (rating = 'up' or coalesce(attributes->>'firsttoken.declined', 'false') <> 'true')
   and (('up' = any($2) and rating = 'up')
     or ('escalated' = any($2) and (attributes->>'firsttoken.escalations')::int > 0)
     or ('canary' = any($2) and exists (
         select from canaries c
          where c.name = attributes->>'canary'
            and (case when c.promoted_at is not null then 'treatment' when c.state = 'rolled_back' then 'control' end)
                = attributes->>'canary_arm')))
 order by created_at desc, id limit $3
"""


async def accepted_answers(database: Database, tenant_id: UUID, why: Collection[Why], limit: int) -> list[Answered]:
    """The newest accepted answers of one tenant, for any of these reasons."""
    return [Answered(**row) for row in await database.rows(tenant_id, ACCEPTED, list(why), limit)]
