"""What the toolbox does for tools that say more of themselves: idempotent, pure, patient."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from agents import toolbox
from agents.tool import ToolContext, ToolError, TryAgain, tool
from agents.toolbox import CHARS_MAX, ENTRY_CHARS_MIN, CachedResult, Key, Toolbox, ToolResult, result_cache
from tests.agents.turns import TENANT

OTHER = UUID(int=8)
KEY = Key(TENANT, "f", "{}")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(toolbox, "WAITS_S", (0.001, 0.001))
    yield


class Flaky:
    """Fails a number of times, then works; counts how often it was tried."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or ConnectionError("gone")
        self.tries = 0

    def __call__(self) -> str:
        self.tries += 1
        if self.tries <= self.failures:
            raise self.error
        return f"try {self.tries}"


async def run(flaky: Flaky, *, idempotent: bool = True, timeout_s: float = 5.0) -> ToolResult:
    @tool(idempotent=idempotent)
    async def fetch() -> str:
        """Fetch."""
        return flaky()

    return await Toolbox([fetch]).run("fetch", "{}", ToolContext(TENANT), timeout_s=timeout_s, result_chars=100)


async def test_an_idempotent_tool_is_tried_again() -> None:
    assert (await run(Flaky(2))).output == "try 3"


async def test_it_is_not_tried_for_ever() -> None:
    flaky = Flaky(10)
    assert (await run(flaky)).output == "Error: fetch failed (ConnectionError)"
    assert flaky.tries == 3


async def test_another_tool_is_tried_once() -> None:
    flaky = Flaky(1)
    assert (await run(flaky, idempotent=False)).failed
    assert flaky.tries == 1


async def test_what_a_tool_says_is_its_answer_unless_it_asks_for_another_try() -> None:
    said = Flaky(1, ToolError("no such room"))
    assert (await run(said)).output == "Error: no such room"
    assert said.tries == 1
    assert (await run(Flaky(1, TryAgain("busy")))).output == "try 2"


async def test_there_is_no_try_for_which_no_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolbox, "WAITS_S", (60.0,))
    flaky = Flaky(1)
    assert (await run(flaky)).failed
    assert flaky.tries == 1


async def test_a_tool_knows_the_time_that_it_has_left() -> None:
    @tool
    def patience(context: ToolContext) -> bool:
        """Say whether the time is short."""
        return 0 < context.remaining_s <= 7

    given = ToolContext(TENANT)
    result = await Toolbox([patience]).run("patience", "{}", given, timeout_s=7, result_chars=100)
    assert result.output == "true"
    assert given.deadline_ns is None  # each call has its own


class Counter:
    """A box with a pure tool that counts how often it really ran."""

    def __init__(self) -> None:
        self.runs = 0

        @tool(cache_s=60)
        def square(x: int) -> int:
            """Square a number."""
            self.runs += 1
            return x * x

        self.box = Toolbox([square])

    async def run(self, arguments: str, tenant_id: UUID = TENANT) -> ToolResult:
        return await self.box.run("square", arguments, ToolContext(tenant_id), timeout_s=5, result_chars=100)


async def test_a_pure_tool_runs_once_for_equal_arguments() -> None:
    counter = Counter()
    first, again = await counter.run('{"x": 3}'), await counter.run('{ "x":3 }')
    assert (first.output, first.cached, again.output, again.cached) == ("9", False, "9", True)
    assert (await counter.run('{"x": 4}')).output == "16"
    assert counter.runs == 2


async def test_results_are_not_shared_between_tenants() -> None:
    counter = Counter()
    await counter.run('{"x": 3}')
    assert not (await counter.run('{"x": 3}', OTHER)).cached


async def test_a_failure_is_not_kept() -> None:
    counter = Counter()
    assert (await counter.run('{"x": "three"}')).failed
    assert not (await counter.run('{"x": "three"}')).cached


def test_what_depends_on_the_turn_cannot_be_pure() -> None:
    def whoami(context: ToolContext) -> str:
        """Say who asks."""
        return str(context.tenant_id)

    with pytest.raises(TypeError, match="whoami"):
        tool(cache_s=60)(whoami)


async def test_a_kept_result_grows_old(monkeypatch: pytest.MonkeyPatch) -> None:
    counter, clock = Counter(), [0]
    monkeypatch.setattr("agents.toolbox.now_ns", lambda: clock[0])
    await counter.run('{"x": 3}')
    clock[0] = 60 * 10**9 - 1
    assert (await counter.run('{"x": 3}')).cached
    clock[0] += 1
    assert not (await counter.run('{"x": 3}')).cached


def test_the_least_recently_used_results_leave_first() -> None:
    cache, kept = result_cache(), CachedResult("out", 100)
    keys = [Key(TENANT, "f", str(i)) for i in range(CHARS_MAX // ENTRY_CHARS_MIN)]
    for key in keys:
        cache.put(key, kept)
    cache.get(keys[0])
    cache.put(KEY, kept)
    assert [cache.get(key) for key in (keys[0], keys[1], KEY)] == [kept, None, kept]


def test_large_results_leave_room() -> None:
    cache = result_cache()
    for number in range(3):
        cache.put(Key(TENANT, "f", str(number)), CachedResult("x" * 1_900_000, 100))
    kept = [Key(TENANT, "f", str(number)) in cache for number in range(3)]
    assert kept == [False, True, True]
