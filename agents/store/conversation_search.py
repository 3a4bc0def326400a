"""Search in one's conversations by the words of their titles and messages.

A tenant's own rows are scanned, newest first, instead of an index over those of all tenants: the duration of a search
must not reveal what others have written, and prefixes of words are found too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from agents.store.conversations import Conversation
from migrations.pool import Database

WORDS_MAX = 8  # of one query; more would not change what is found
WORD_CHARS_MAX = 64
# Rows of one search, about a tenth of a second: years of one person's conversations. Older ones are not found.
CONVERSATIONS_MAX, MESSAGES_MAX = 2_000, 20_000
EXCERPT_CHARS_MAX = 20_000  # of a message: the part that is searched
MARK, END = "\x02", "\x03"  # around the matching words in an excerpt; they never occur in text that people type
HEADLINE = f"StartSel={MARK}, StopSel={END}, MaxWords=24, MinWords=12"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Of the message that matches. `marks` are the [start, end) of the words in the text."""

    item_id: str
    text: str
    marks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """`excerpt` is None if only the title matches."""

    conversation: Conversation
    excerpt: Excerpt | None


class ConversationSearch:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant_id: UUID, text: str, limit: int) -> list[Found]:
        """Conversations whose title or one of whose messages contains all words, matched by prefix; newest first."""
        if not (query := prefixes(text)):
            return []
        most = CONVERSATIONS_MAX, MESSAGES_MAX, EXCERPT_CHARS_MAX
        rows = await self._database.rows(tenant_id, _FIND, query, limit, *most, HEADLINE)
        return [
            Found(
                Conversation(row["id"], row["created_at"], row["updated_at"], row["metadata"]),
                excerpt(row["item_id"], row["headline"]) if row["headline"] is not None else None,
            )
            for row in rows
        ]


def prefixes(text: str) -> str:
    """The query as a tsquery: all words, each as a prefix. Empty for a text without words."""
    words = re.findall(r"\w+", text)[:WORDS_MAX]
    return " & ".join(f"'{word[:WORD_CHARS_MAX]}':*" for word in words)


def excerpt(item_id: str, headline: str) -> Excerpt:
    text, marks = "", []
    for number, piece in enumerate(headline.split(MARK)):
        word, end, rest = piece.partition(END) if number else ("", "", piece)
        if end:
            marks.append((len(text), len(text) + len(word)))
        text += word + rest
    return Excerpt(item_id, text, tuple(marks))


_FIND = """with asked as materialized (select to_tsquery('simple', $2) as query),
    visited as materialized (
        select c.id, c.created_at, c.updated_at, c.metadata, c.titled, i.position, i.words
          from (select id, created_at, updated_at, metadata,
                       to_tsvector('simple', coalesce(metadata->>'title', '')) @@ query as titled
                  from conversations, asked where tenant_id = $1 order by updated_at desc limit $4) c
          left join lateral (
               select position, words from items
                where tenant_id = $1 and conversation_id = c.id and chosen and words is not null
                order by position desc) i on true
         limit $5),
    hits as (
        select distinct on (updated_at, id) id, created_at, updated_at, metadata,
               case when words @@ query then position end as position
          from visited, asked
         where titled or words @@ query
         order by updated_at desc, id, (words @@ query) desc nulls last, position desc
         limit $3)
    select h.id, h.created_at, h.updated_at, h.metadata, i.id as item_id,
           ts_headline('simple', left(jsonb_path_query_first(i.payload, '$.content[*].text') #>> '{}', $6), query, $7)
               as headline
      from hits h cross join asked
      left join items i on i.tenant_id = $1 and i.conversation_id = h.id and i.position = h.position
     order by h.updated_at desc, h.id"""
