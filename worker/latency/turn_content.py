"""The content of a turn, for display with its times: only for its own tenant, and only if it is stored anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from migrations.pool import Database

QUESTION_CHARS = 160  # one line of a list
TEXT_CHARS = 4000  # of the arguments or the result of a tool; the conversation has the full text
CALLS_MAX = 64

# The user's last message. Truncated in the database: a question may be a book.
QUESTIONS = """
select r.id, left((select string_agg(part->>'text', ' ')
                     from jsonb_array_elements(
                         case when jsonb_typeof(asked->'content') = 'array' then asked->'content' else '[]' end) as part
                    where part->>'type' = 'input_text'), $2) as question
  from responses r
 cross join lateral (select value as asked
                       from jsonb_array_elements(r.input) with ordinality as each(value, position)
                      where value->>'type' = 'message' and value->>'role' = 'user'
                      order by position desc limit 1) as last
 where r.id = any($1)
"""

CALLS = """
select item->>'type' as type, item->>'call_id' as call_id, item->>'name' as name,
       left(item->>'arguments', $2) as arguments, left(item->>'output', $2) as output
  from responses r, jsonb_array_elements(r.body->'output') with ordinality as each(item, position)
 where r.id = $1 and item->>'type' in ('function_call', 'function_call_output')
 order by position
 limit $3
"""


async def questions(database: Database, tenant_id: UUID, response_ids: Sequence[str]) -> Mapping[str, str]:
    """By response id; responses that were not stored are left out."""
    if not response_ids:
        return {}
    async with database.tenant(tenant_id) as connection:
        rows = await connection.fetch(QUESTIONS, list(response_ids), QUESTION_CHARS)
    return {row["id"]: row["question"] for row in rows if row["question"]}


async def calls(database: Database, tenant_id: UUID, response_id: str) -> list[dict[str, Any]]:
    """The tool calls of a stored response, in their order: name, arguments and output as texts."""
    async with database.tenant(tenant_id) as connection:
        rows = await connection.fetch(CALLS, response_id, TEXT_CHARS, 2 * CALLS_MAX)
    outputs = {row["call_id"]: row["output"] for row in rows if row["type"] == "function_call_output"}
    return [
        {"name": row["name"], "arguments": row["arguments"], "output": outputs.get(row["call_id"])}
        for row in rows
        if row["type"] == "function_call"
    ]
