"""Whose latencies a principal may see: operators those of all tenants, others those of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from migrations.pool import Database
from worker.auth.principal import Principal

if TYPE_CHECKING:
    from migrations.pool import Connection


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
