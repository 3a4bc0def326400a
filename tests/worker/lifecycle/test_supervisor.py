"""What runs beside requests: begun again after whatever ended it, and told when it cannot be kept running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrations.embedded import EmbeddedPostgres
from migrations.pool import ACQUIRE_S, Database
from tests.proxy import proxied
from tests.scripted import ScriptedModel
from tests.worker.answering import MODEL, get, post, services_with
from tests.worker.harness import Client
from tests.worker.sharing import signed_in
from worker.lifecycle import supervisor as module
from worker.lifecycle.supervisor import (
    DOWN_FAILURES,
    RETRY_MAX_S,
    RETRY_S,
    Healthy,
    Part,
    Supervisor,
    Vitals,
    all_of,
    retry_s,
)
from worker.routes import health
from worker.telemetry.prometheus import Metrics


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """One that loses no time."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    return Supervisor()


async def until(fact: Callable[[], bool]) -> None:
    while not fact():  # noqa: ASYNC110  # the test's own time limit ends this
        await asyncio.sleep(0.001)


class Task:
    """Ends as often as it is told to, each time with the next of `ends`; then it runs on."""

    def __init__(self, *ends: BaseException | None) -> None:
        self.ends = list(ends)
        self.runs = 0

    async def run(self, healthy: Healthy) -> None:
        self.runs += 1
        if self.ends:
            end = self.ends.pop(0)
            if end is not None:
                raise end
            return
        healthy()
        await asyncio.Event().wait()


async def test_of_what_is_awaited_together_the_first_failure_is_told_when_the_others_are_over() -> None:
    told = list[str]()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("over")

    async def fails() -> None:
        raise ValueError("small")

    with pytest.raises(ValueError, match="small"):
        await all_of(slow(), fails())
    assert told == ["over"]
    assert await all_of(asyncio.sleep(0, "a"), asyncio.sleep(0, "b")) == ["a", "b"]


async def test_who_cleans_up_after_all_were_cancelled_is_not_cancelled_again() -> None:
    began, is_clean = asyncio.Event(), False

    async def cleans_up() -> None:
        nonlocal is_clean
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):  # turns of the loop: by then, what waits for both has heard of the other's end
                await asyncio.sleep(0)
            is_clean = True

    waits = asyncio.create_task(all_of(asyncio.Event().wait(), cleans_up()))
    await began.wait()
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert is_clean


@pytest.mark.parametrize(
    "end",
    [
        asyncpg.InternalClientError("cannot switch to state 15"),
        asyncpg.AdminShutdownError("terminating connection"),
        Exception("a bare one"),
        AssertionError(),
        asyncio.CancelledError(),
        None,
    ],
    ids=repr,
)
async def test_a_task_is_begun_again_whatever_ended_it(supervisor: Supervisor, end: BaseException | None) -> None:
    task = Task(end)
    running = supervisor.start("janitor", task.run)
    await until(lambda: task.runs == 2)
    assert running.vitals.failures_total == 1
    assert supervisor.down == {}
    await running.stop()


async def test_a_task_that_fails_for_ever_is_down_until_it_is_well(supervisor: Supervisor) -> None:
    task = Task(*[OSError()] * DOWN_FAILURES)
    running = supervisor.start("event_log", task.run)
    await until(lambda: supervisor.down.keys() == {"event_log"})
    await until(lambda: task.runs > DOWN_FAILURES)
    assert supervisor.down == {}
    await running.stop()


async def test_a_task_that_says_nothing_is_begun_again(supervisor: Supervisor) -> None:
    runs: list[Healthy] = []

    async def hang(healthy: Healthy) -> None:
        runs.append(healthy)
        await asyncio.Event().wait()

    running = supervisor.start("presence", hang, silent_s=0.01)
    await until(lambda: len(runs) > DOWN_FAILURES)
    assert "presence" in supervisor.down
    await running.stop()


async def test_a_task_that_is_well_now_and_then_has_all_of_its_time_again(supervisor: Supervisor) -> None:
    done, limits = asyncio.Event(), list[float]()

    async def work(healthy: Healthy) -> None:
        for _ in range(3):
            await asyncio.sleep(0.001)
            was_well_at = asyncio.get_running_loop().time()
            healthy()
            limits.append((running._limit.when() or 0.0) - was_well_at)
        done.set()
        await asyncio.Event().wait()

    running = supervisor.start("janitor", work, silent_s=60)
    await done.wait()
    assert all(each >= 60 for each in limits) and running.vitals.failures_total == 0
    await running.stop()


async def test_a_task_that_somebody_ended_is_down(supervisor: Supervisor) -> None:
    task = Task()
    running = supervisor.start("queue", task.run)
    await until(lambda: task.runs == 1)
    running._task.cancel()
    await until(lambda: "queue" in supervisor.down)


async def test_what_may_end_ends(supervisor: Supervisor) -> None:
    task = Task(None)
    running = supervisor.start("calibrator", task.run, ends=True)
    await asyncio.wait([running._task])
    assert (task.runs, supervisor.down) == (1, {})


async def test_a_task_that_swallows_being_cancelled_is_stopped_all_the_same(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.01)
    swallowed: list[int] = []

    async def stubborn(_healthy: Healthy) -> None:
        while len(swallowed) < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(1)
        await asyncio.Event().wait()

    running = supervisor.start("queue", stubborn)
    await asyncio.sleep(0)
    await running.stop()
    assert len(swallowed) == 2


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_pauses_grow_up_to_their_bound(failures: int, chance: float) -> None:
    pause_s, next_s = retry_s(failures, chance), retry_s(failures + 1, chance)
    assert RETRY_S / 2 <= retry_s(1, chance) <= pause_s <= next_s <= RETRY_MAX_S


def test_a_row_of_failures_has_its_first_one_s_time() -> None:
    vitals = Vitals()
    for now in range(DOWN_FAILURES):
        assert not vitals.is_down
        vitals = vitals.failed(float(now))
    assert (vitals.is_down, vitals.since) == (True, 0.0)
    assert vitals.recovered() == Vitals(failures_total=DOWN_FAILURES)


async def test_metrics_tell_of_each_part(supervisor: Supervisor) -> None:
    task = Task(*[OSError()] * DOWN_FAILURES)
    running = supervisor.start("telemetry", task.run)
    await until(lambda: "telemetry" in supervisor.down)
    text = Metrics(dict, supervisor).render().decode()
    assert 'firsttoken_background_up{part="telemetry"} 0.0' in text
    await until(lambda: task.runs > DOWN_FAILURES)
    text = Metrics(dict, supervisor).render().decode()
    assert 'firsttoken_background_up{part="telemetry"} 1.0' in text
    assert f'firsttoken_background_failures_total{{part="telemetry"}} {DOWN_FAILURES}.0' in text
    await running.stop()


@pytest.fixture
async def client(database: Database) -> AsyncIterator[Client]:
    async with signed_in(database, services_with(database, ScriptedModel(["Hello."], name=MODEL))) as client:
        yield client


@pytest.mark.parametrize(("part", "status"), [("event_log", 503), ("tool_servers", 200)])
async def test_readiness_names_what_is_down_and_refuses_without_what_is_vital(
    database: Database, part: Part, status: int
) -> None:
    services = services_with(database, ScriptedModel(["Hello."], name=MODEL))
    async with signed_in(database, services) as client:
        assert (await get(client, "/readyz"))["down"] == {}
        running = services.supervisor.start(part, Task(*[OSError()] * 1000).run)
        await until(lambda: part in services.supervisor.down)
        told = await get(client, "/readyz", status)
        await running.stop()
    assert list(told["down"]) == [part]
    assert told["parts"]["background"] == ("down" if status == 503 else "ok")


async def test_readiness_is_known_in_time_though_the_database_stands_still(
    postgres: EmbeddedPostgres, owner_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "DATABASE_TIMEOUT_S", 0.1)
    async with proxied(postgres.app_dsn) as proxy:
        far = await Database.connect(proxy.dsn)
        async with signed_in(far, services_with(far, ScriptedModel(["Hello."], name=MODEL))) as client:
            proxy.stand_still()
            async with asyncio.timeout(ACQUIRE_S):
                told = await get(client, "/readyz", 503)
            assert told["parts"]["database"] == "TimeoutError"
            proxy.go_on()
            while (await client.get("/readyz")).status != 200:  # noqa: ASYNC110  # the test has a time limit
                await asyncio.sleep(0.01)
        await far.close()


STATES = ["idle", "active", "idle in transaction"]


@pytest.mark.parametrize("state", STATES)
async def test_everything_resumes_after_its_connections_were_ended(
    database: Database, owner_dsn: str, state: str
) -> None:
    services = services_with(database, ScriptedModel(["Hello.", "Again."], name=MODEL))
    async with signed_in(database, services) as client:
        await post(client, "/v1/responses", {"input": "x"})
        admin = await asyncpg.connect(owner_dsn)
        busy = asyncio.create_task(_occupy(database, state))
        for _ in range(5):
            await admin.fetch("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'firsttoken_app'")
            await asyncio.sleep(0.02)
        busy.cancel()
        await asyncio.wait([busy])
        await until(lambda: services.presence.is_alive)
        made = await post(client, "/v1/responses", {"input": "x"})
        lost = await admin.fetchval("select count(*) from responses where worker is null and id = $1", made["id"])
        while not lost:  # its events are stored, too
            lost = await admin.fetchval("select count(*) from responses where worker is null and id = $1", made["id"])
        await until(lambda: services.supervisor.down == {})
        await admin.close()


async def _occupy(database: Database, state: str) -> None:
    while True:
        try:
            async with database.anonymous() as connection:
                if state == "active":
                    await connection.execute("select pg_sleep(10)")
                elif state == "idle in transaction":
                    await connection.execute("begin; select 1")
                    await asyncio.sleep(10)
                else:
                    await asyncio.sleep(10)
        except Exception:
            await asyncio.sleep(0.005)
