"""Stored items by their ids, wherever they are: in conversations and in the output of responses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from agents.message import Item
from agents.payload import from_payload
from migrations.pool import Database

FEW = 200  # read in a millisecond; thousands would hold up all other requests


async def items_of(payloads: Sequence[Mapping[str, Any]]) -> tuple[Item, ...]:
    """The items of a history, read in a thread where they are many."""
    if len(payloads) <= FEW:
        return tuple(map(from_payload, payloads))
    return await asyncio.to_thread(lambda: tuple(map(from_payload, payloads)))


class ItemStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant_id: UUID, ids: Sequence[str]) -> dict[str, Item]:
        """Those of these items that belong to the tenant, by their ids."""
        if not ids:
            return {}
        async with self._database.tenant(tenant_id) as connection:
            rows = await connection.fetch("select payload from stored_items($1)", list(ids))
        return {row["payload"]["id"]: from_payload(row["payload"]) for row in rows}
