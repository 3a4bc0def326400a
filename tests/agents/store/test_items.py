"""Histories as they come out of the database."""

from __future__ import annotations

import threading
from typing import Any

from agents.message import Message
from agents.payload import to_payload
from agents.store.conversations import FEW, items_of


class Noting(dict[str, Any]):
    """A payload that notes which thread reads it."""

    def __init__(self, payload: dict[str, Any], threads: set[int]) -> None:
        super().__init__(payload)
        self._threads = threads

    def __getitem__(self, key: str) -> Any:
        self._threads.add(threading.get_ident())
        return super().__getitem__(key)


async def test_a_long_history_is_read_beside_the_event_loop() -> None:
    here, items = threading.get_ident(), tuple(Message("user", f"number {n}") for n in range(FEW + 1))
    few, many = set[int](), set[int]()
    assert await items_of([Noting(to_payload(item), few) for item in items[:FEW]]) == items[:FEW]
    assert await items_of([Noting(to_payload(item), many) for item in items]) == items
    assert few == {here} and many and here not in many
