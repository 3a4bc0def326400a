"""What is searched before it is asked: used by who asks just that, ended by the next key, and counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from typing import Any, cast
from uuid import UUID

import pytest

from inference.generation import Facts, Finish, Spent
from inference.trace import Trace
from retrieval import speculative_search as module
from retrieval.passage import Passage
from retrieval.query import Query
from retrieval.speculative_search import READ_TOKENS, TENANT_MAX, ReadDraft, SpeculativeSearch

PASSAGE = Passage("vs_1", "file_1", "docs/port.md", "Port", "The default port is 8080.", 100, 125, 7, 0.9)
TENANT, OTHER = UUID(int=1), UUID(int=2)


class Shelf:
    """`asked` are its questions. It stands still until it is `open`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.budgets_ms: list[float] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None
        self.found = [PASSAGE]

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        self.asked.append(query.text)
        self.budgets_ms.append(budget_ms)
        await self.open.wait()
        if self.error:
            raise self.error
        return list(self.found)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def speculative_search(shelf: Shelf) -> SpeculativeSearch:
    return SpeculativeSearch(shelf, is_free=lambda: True)


async def ask(
    speculative_search: SpeculativeSearch,
    text: str,
    place: str | None = None,
    trace: Trace | None = None,
    budget_ms: float = inf,
    **other: Any,
) -> list[Passage]:
    """With a place, it is only written there."""
    query = Query(**{"tenant_id": TENANT, "text": text, "stores": ("docs",), "limit": 5, **other})
    if place is None:
        return await speculative_search.retrieve(query, trace or Trace(), budget_ms)
    speculative_search.begin(place, query)
    await asyncio.sleep(0)  # what was begun begins
    return []


async def test_who_asks_what_was_written_gets_what_was_found(
    speculative_search: SpeculativeSearch, shelf: Shelf
) -> None:
    assert await ask(speculative_search, "Which port?", "here") == []
    trace = Trace()
    assert await ask(speculative_search, "Which port? ", trace=trace) == [PASSAGE]
    assert shelf.asked == ["Which port?"]
    assert trace.spans[0].attributes == {"stores": 1, "ahead": True, "passages": 1}
    assert speculative_search.counts == {"used": 1, "wasted": 0, "cancelled": 0}
    assert await ask(speculative_search, "Which port?") == [PASSAGE]  # it is used once
    assert len(shelf.asked) == 2


async def test_the_next_key_ends_the_search_for_the_last(speculative_search: SpeculativeSearch, shelf: Shelf) -> None:
    shelf.open.clear()
    await ask(speculative_search, "Which", "here")
    await ask(speculative_search, "Which port?", "here")
    shelf.open.set()
    await asyncio.sleep(0)
    await ask(speculative_search, "Which port is it?", "here")
    assert speculative_search.counts == {"used": 0, "wasted": 1, "cancelled": 1}


@pytest.mark.parametrize("other", [{"tenant_id": OTHER}, {"stores": ("more",)}, {"limit": 6}, {"score_threshold": 0.1}])
async def test_another_search_finds_nothing_of_it(
    speculative_search: SpeculativeSearch, shelf: Shelf, other: dict[str, Any]
) -> None:
    await ask(speculative_search, "Which port?", "here")
    await ask(speculative_search, "Which port?", **other)
    assert len(shelf.asked) == 2
    assert speculative_search.counts["used"] == 0


async def test_what_was_found_long_ago_is_searched_again(
    speculative_search: SpeculativeSearch, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_S", 0.0)
    await ask(speculative_search, "Which port?", "here")
    assert await ask(speculative_search, "Which port?") == [PASSAGE]
    assert len(shelf.asked) == 2
    assert speculative_search.counts["wasted"] == 1


async def test_a_search_that_failed_is_made_again_for_who_asks(
    speculative_search: SpeculativeSearch, shelf: Shelf
) -> None:
    shelf.error = RuntimeError("no model")
    await ask(speculative_search, "Which port?", "here")
    await asyncio.sleep(0)
    shelf.error = None
    assert await ask(speculative_search, "Which port?") == [PASSAGE]


async def test_nothing_runs_ahead_of_those_who_wait(shelf: Shelf) -> None:
    await ask(SpeculativeSearch(shelf, is_free=lambda: False), "Which port?", "here")
    assert shelf.asked == []


async def test_a_tenant_has_few_of_them_and_another_its_own(
    speculative_search: SpeculativeSearch, shelf: Shelf
) -> None:
    for number in range(TENANT_MAX + 2):
        await ask(speculative_search, f"Which port is {number}?", f"place {number}")
    assert len(shelf.asked) == TENANT_MAX
    await ask(speculative_search, "Which port?", "elsewhere", tenant_id=OTHER)
    assert len(shelf.asked) == TENANT_MAX + 1


async def test_who_has_no_time_does_not_wait_for_it(speculative_search: SpeculativeSearch, shelf: Shelf) -> None:
    shelf.open.clear()
    await ask(speculative_search, "Which port?", "here")
    late = asyncio.create_task(ask(speculative_search, "Which port?", budget_ms=10.0))
    while len(shelf.asked) < 2:  # noqa: ASYNC110  # the retriever keeps its own time; the test's limit ends this
        await asyncio.sleep(0)
    shelf.open.set()
    assert await late == [PASSAGE]
    assert speculative_search.counts["cancelled"] == 1
    assert shelf.budgets_ms[1] <= 5.0  # the wait counts


async def test_who_leaves_while_waiting_for_it_ends_it(speculative_search: SpeculativeSearch, shelf: Shelf) -> None:
    shelf.open.clear()
    await ask(speculative_search, "Which port?", "here")
    leaving = asyncio.create_task(ask(speculative_search, "Which port?"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert speculative_search.counts == {"used": 0, "wasted": 0, "cancelled": 1}


class Reading:
    """A prefill with a prompt of ten tokens, which takes a second of the engine and runs until it is cancelled."""

    prompt_tokens = 10
    finish: Finish | None = None
    facts = Facts(spent=Spent(engine_ns=10**9))

    def __init__(self) -> None:
        self.passages: list[Passage] = []

    def cancel(self) -> None:
        self.finish = Finish.CANCELLED

    async def start(self, passages: list[Passage]) -> Any:
        self.passages = passages
        return ReadDraft(passages[:1], cast(Any, self))


async def test_the_prompt_is_read_with_what_was_found_and_its_time_was_not_wasted_on_who_asks(
    speculative_search: SpeculativeSearch,
) -> None:
    reading, trace = Reading(), Trace()
    await ask(speculative_search, "Which port?", "here")
    assert await speculative_search.read("here", reading.start)
    assert reading.passages == [PASSAGE]
    assert await speculative_search.read("here", Reading().start), "once"
    await ask(speculative_search, "Which port?", trace=trace)
    assert trace.spans[0].attributes == {"stores": 1, "ahead": True, "passages": 1}
    assert reading.finish is None, "the prompt goes on from it"
    reading.cancel()
    assert speculative_search.engine_s == {"used": 1.0, "wasted": 0.0}


async def test_who_asks_is_told_that_all_of_the_prompt_was_read(speculative_search: SpeculativeSearch) -> None:
    reading, trace = Reading(), Trace()
    await ask(speculative_search, "Which port?", "here")
    await speculative_search.read("here", reading.start)
    reading.finish = Finish.LENGTH
    assert await ask(speculative_search, "Which port?", trace=trace) == [PASSAGE]
    assert trace.spans[0].attributes[READ_TOKENS] == 10


async def test_who_asks_gets_the_passages_that_were_read(speculative_search: SpeculativeSearch, shelf: Shelf) -> None:
    shelf.found = [PASSAGE, replace(PASSAGE, file_id="file_2")]
    reading = Reading()
    await ask(speculative_search, "Which port?", "here")
    await speculative_search.read("here", reading.start)
    assert reading.passages == shelf.found
    assert await ask(speculative_search, "Which port?") == [PASSAGE]


async def test_a_prompt_for_which_nothing_was_found_is_read_too(
    speculative_search: SpeculativeSearch, shelf: Shelf
) -> None:
    shelf.found, reading, trace = [], Reading(), Trace()
    await ask(speculative_search, "How are you?", "here")
    assert await speculative_search.read("here", reading.start)
    reading.finish = Finish.LENGTH
    assert await ask(speculative_search, "How are you?", trace=trace) == []
    assert trace.spans[0].attributes[READ_TOKENS] == 10


@pytest.mark.parametrize("later", ["Which port is it?", None])
async def test_the_next_key_ends_the_reading_whose_time_was_wasted(
    speculative_search: SpeculativeSearch, later: str | None
) -> None:
    reading = Reading()
    await ask(speculative_search, "Which port?", "here")
    await speculative_search.read("here", reading.start)
    if later is None:
        speculative_search.forget("here")
    else:
        await ask(speculative_search, later, "here")
    assert reading.finish is Finish.CANCELLED
    assert speculative_search.engine_s == {"used": 0.0, "wasted": 1.0}


async def test_nothing_is_read_for_a_draft_that_was_asked_or_changed_meanwhile(
    speculative_search: SpeculativeSearch, shelf: Shelf
) -> None:
    shelf.open.clear()
    await ask(speculative_search, "Which port?", "here")
    waiting = asyncio.create_task(speculative_search.read("here", (late := Reading()).start))
    asking = asyncio.create_task(ask(speculative_search, "Which port?"))
    await asyncio.sleep(0)
    shelf.open.set()
    assert (await asking, await waiting, late.passages) == ([PASSAGE], False, [])

    async def changed(passages: list[Passage]) -> Any:
        speculative_search.forget("here")
        return await late.start(passages)

    await ask(speculative_search, "Which port?", "here")
    assert not await speculative_search.read("here", changed)
    assert late.finish is Finish.CANCELLED and speculative_search.engine_s["wasted"] == 1.0
    assert not await speculative_search.read("here", Reading().start), "nothing is searched there"


async def test_nothing_is_read_once_somebody_waits_for_an_answer(speculative_search: SpeculativeSearch) -> None:
    await ask(speculative_search, "Which port?", "here")
    speculative_search.is_free = lambda: False
    assert not await speculative_search.read("here", Reading().start)
