"""What a key may spend in a day, over all workers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from worker.auth.principal import KeyLimits, Principal
from worker.errors import ApiError
from worker.runs.admission import DailyBudgets

TENANT = uuid4()


def key(cost_per_day: float | None = 10.0, id: str = "key_1") -> Principal:
    return Principal(TENANT, id, frozenset(), "api_key", KeyLimits(cost_per_day=cost_per_day))


class Store:
    """What all workers have stored, and what this one is about to."""

    def __init__(self, spent: float = 0.0) -> None:
        self.spent = spent
        self.asked: list[tuple[UUID, str, datetime]] = []
        self.down = False

    async def read(self, tenant_id: UUID, key_id: str, since: datetime) -> float:
        self.asked.append((tenant_id, key_id, since))
        if self.down:
            raise TimeoutError
        return self.spent

    async def flush(self) -> None:
        pass


async def test_a_key_is_refused_from_the_moment_when_its_budget_is_spent() -> None:
    store = Store()
    budgets = DailyBudgets(store.read, store.flush)
    await budgets.know(key())
    budgets.charge(key(), 9.5)
    budgets.check(key())
    budgets.charge(key(), 0.5)
    with pytest.raises(ApiError) as refused:
        budgets.check(key())
    error = refused.value
    assert (error.status, error.code, error.headers) == (429, "insufficient_quota", {"X-Should-Retry": "false"})
    assert "spent its budget of 10 for today" in error.message
    assert error.retry_after_s is not None
    assert 0 < error.retry_after_s <= 86400


async def test_what_other_workers_stored_counts_from_the_first_request_on() -> None:
    store = Store(12.0)
    budgets = DailyBudgets(store.read, store.flush)
    await budgets.know(key())
    with pytest.raises(ApiError):
        budgets.check(key())
    (asked,) = store.asked
    assert asked[:2] == (TENANT, "key_1")
    assert (asked[2].hour, asked[2].tzinfo) == (0, UTC)


async def test_all_who_ask_first_wait_for_what_was_spent_also_when_the_first_of_them_leaves() -> None:
    store, goes_on = Store(12.0), asyncio.Event()

    async def slow() -> None:
        await goes_on.wait()

    budgets = DailyBudgets(store.read, slow)
    first, second = (asyncio.create_task(budgets.know(key())) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    goes_on.set()
    await second
    with pytest.raises(ApiError):
        budgets.check(key())
    assert len(store.asked) == 1


async def test_what_was_charged_here_counts_once_after_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    budgets = DailyBudgets(store.read, store.flush)
    await budgets.know(key())
    budgets.charge(key(), 6.0)
    store.spent = 6.0
    monkeypatch.setattr("worker.runs.admission.REREAD_S", 0.0)
    budgets.check(key())
    await asyncio.gather(*budgets._reading)
    assert len(store.asked) == 2
    budgets.check(key())
    budgets.charge(key(), 3.9)
    budgets.check(key())
    budgets.charge(key(), 0.2)
    with pytest.raises(ApiError):
        budgets.check(key())
    await asyncio.gather(*budgets._reading)


async def test_while_the_database_is_away_what_is_known_counts() -> None:
    store = Store()
    store.down = True
    budgets = DailyBudgets(store.read, store.flush)
    await budgets.know(key())
    budgets.check(key())
    budgets.charge(key(), 11.0)
    with pytest.raises(ApiError):
        budgets.check(key())


async def test_a_key_without_a_budget_is_not_looked_at_and_others_are_apart() -> None:
    store = Store(100.0)
    budgets = DailyBudgets(store.read, store.flush)
    await budgets.know(key(None))
    budgets.charge(key(None), 1e9)
    budgets.check(key(None))
    assert store.asked == []
    await budgets.know(key(id="key_1"))
    store.spent = 0.0
    await budgets.know(key(id="key_2"))
    budgets.check(key(id="key_2"))
