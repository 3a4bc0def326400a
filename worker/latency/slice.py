"""Which responses are counted, as SQL conditions on the roll-ups. Pure.

The roll-ups have two tables: `latency` by surface, model, agent and tenant, which is small, and `latency_slices` by all
dimensions of a slice. So a query without finer conditions does not read the fine table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

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
