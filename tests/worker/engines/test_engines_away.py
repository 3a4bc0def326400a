"""Engines that die, stop, come back or are none: what a model that needs them does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from inference.errors import EnginesAway, NotDeterministic
from inference.generation import Delta, Finish, Generation, Sampling, Terms
from inference.prompt import ChatMessage
from inference.remote import remote_generation
from inference.remote.remote_model import RemoteModel
from tests.engines import EngineProcess, reaching
from tests.serving import START_TIMEOUT_S

COMPARED = 60  # tokens: the rest keeps the engine at work until whoever heard the tenth has ended it
LONG = Sampling(max_tokens=250, temperature=0, logit_bias={0: -100, 2: -100})
pytestmark = pytest.mark.any_answer("it is about whether an answer goes on, whatever it says")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is begun again on a busy machine comes later than an answer may wait for it."""
    monkeypatch.setattr(remote_generation, "STRANDED_S", START_TIMEOUT_S)


def prompt_of(model: RemoteModel) -> list[int]:
    return model.encode(model.render([ChatMessage("user", "Tell me about the river and the sea. " * 4)]))


async def ids_of(generation: Generation, *, at: int = 0, then: Callable[[], object] = lambda: None) -> list[int]:
    """The first tokens of an answer; `then` is called once there are `at` of them."""
    called = False

    def receive(delta: Delta) -> None:
        nonlocal called
        if not called and len(generation.ids) >= at:
            called = True
            then()

    await generation.stream(receive)
    return generation.ids[:COMPARED]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


async def test_an_answer_goes_on_elsewhere_when_its_engine_is_killed_and_all_away_is_a_503(
    make_home: Callable[[], Path],
) -> None:
    home = make_home()
    exact = ("--kv-layout", "streams", "--flash-attention", "off")
    options = ("--streams", "2", "--resident", "1", "--context", "512", *exact)
    with ExitStack() as stack:
        engines = [EngineProcess(home, *options, name=name) for name in ("one", "two")]
        for engine in engines:
            stack.callback(engine.stop)
        at = {engine.wait_until_ready(): engine for engine in engines}
        async with reaching(*at) as model:
            undisturbed = await ids_of(model.generate(prompt_of(model), LONG))
            unheard = model.generate(prompt_of(model), LONG, Terms(salt="another tenant"))  # nothing of it is cached
            await unheard.admitted()
            assert unheard.upstream is not None
            gone = at.pop(unheard.upstream.url)
            gone.kill()
            assert await ids_of(unheard) == undisturbed
            assert (unheard.finish, unheard.moves) == (Finish.LENGTH, 1)
            back = EngineProcess(home, *options, name=gone.log.stem)
            stack.callback(back.stop)
            at[await asyncio.to_thread(back.wait_until_ready)] = back
            await until(lambda: not model.away)

            generation = model.generate(prompt_of(model), LONG)
            assert generation.upstream is not None
            killed = at.pop(generation.upstream.url)
            assert await ids_of(generation, at=10, then=killed.kill) == undisturbed
            assert (generation.finish, generation.moves) == (Finish.LENGTH, 1)

            # However many tokens were heard before, rounding must draw no other one behind them.
            drawn = replace(LONG, temperature=1.0, seed=5, presence_penalty=0.1, deterministic=True)
            alone = await ids_of(model.generate(prompt_of(model), drawn))
            (last,) = at.values()
            going = asyncio.create_task(ids_of(model.generate(prompt_of(model), drawn), at=10, then=last.kill))
            await until(lambda: model.failed is not None)

            with pytest.raises(EnginesAway) as refused:
                await model.generate(prompt_of(model), LONG).admitted()
            assert (refused.value.status, refused.value.retry_after_s) == (503, 1.0)

            again = EngineProcess(home, *options, name="one")
            stack.callback(again.stop)
            again.wait_until_ready()
            await until(lambda: model.failed is None)
            assert await going == alone
            leaving = model.generate(prompt_of(model), LONG)
            await leaving.admitted()
            stopping = asyncio.create_task(asyncio.to_thread(again.stop))
            assert await ids_of(leaving) == undisturbed  # it may finish
            assert await stopping == 0
            with pytest.raises(EnginesAway):
                await model.generate(prompt_of(model), LONG).admitted()


async def test_an_answer_waits_for_its_only_engine_to_be_begun_again(
    make_home: Callable[[], Path],
) -> None:
    home = make_home()
    options = ("--streams", "2", "--resident", "1", "--context", "512")
    with ExitStack() as stack:
        engine = EngineProcess(home, *options)
        stack.callback(engine.stop)
        async with reaching(engine.wait_until_ready()) as model:
            undisturbed = await ids_of(model.generate(prompt_of(model), LONG))
            generation = model.generate(prompt_of(model), LONG)
            answer = asyncio.create_task(ids_of(generation, at=10, then=engine.kill))
            await until(lambda: model.failed is not None)
            with pytest.raises(EnginesAway):  # who has seen nothing yet does not wait
                model.generate(prompt_of(model), LONG)
            stack.callback(EngineProcess(home, *options).stop)
            assert await answer == undisturbed
            assert (generation.finish, generation.moves) == (Finish.LENGTH, 1)


async def test_no_engine_that_is_none_of_ours_promises_the_same_tokens(address: str) -> None:
    async with reaching(address) as model:  # without its token
        assert model.failed == "no engine is reachable"
    async with reaching(address, token="the-token-of-the-tests") as model:
        (upstream,) = model._fleet.upstreams
        assert upstream.facts is not None
        upstream.facts = replace(upstream.facts, ours=False)
        with pytest.raises(NotDeterministic):
            model.generate(prompt_of(model), replace(LONG, deterministic=True))
        model.vocabulary_digest, upstream.away = "another", "to be met again"
        await model.start()
        assert upstream.away == "its model has a different vocabulary" and model.failed is not None
