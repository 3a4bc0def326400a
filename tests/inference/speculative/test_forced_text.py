"""What a grammar leaves no choice of takes fewer steps, and changes no token."""

from __future__ import annotations

import asyncio
import json
import string
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from inference.bundled import DRAFT_MODEL
from inference.config import EngineConfig
from inference.engine.engine import Engine
from inference.generation import Finish, Sampling
from inference.grammar.constraint import Constraint, Vocabulary
from inference.grammar.schema import json_grammar
from inference.model import ChatModel
from inference.prompt import ChatMessage
from inference.request import Handle
from inference.speculative.controller import Drafter
from inference.speculative.draft_model import CATCH_UP_TOKENS_MAX, DraftModel
from tests.scripted import ScriptedBackend

CONFIG = EngineConfig(draft_path=DRAFT_MODEL, parallel=3, resident=2, draft_min=2, draft_max=4)
GREEDY = Sampling(temperature=0, max_tokens=100)
# Letters, then two at once, which the model likes better than either of them, and its end.
PIECES = [*(bytes([65 + letter]) for letter in range(26)), b""]
END = 26
GRAMMAR = 'start: /[A-C]{3}/ "DEFGHIJKLMNOPQRSTUVWXYZ" /[A-C]{3}/ "ZYXWV" ("A" "ZYXWV"){4}'
TOKENS = 3 + 23 + 3 + 5 + 4 * 6


def letters(text: str) -> list[int]:
    return [ord(letter) - 65 for letter in text if letter in string.ascii_uppercase]


VOCABULARY = Vocabulary(PIECES, frozenset({END}), letters)


@dataclass
class Side:
    engine: Engine
    backend: ScriptedBackend


def side(drafts: bool = False, *, rewinds: bool = True, pieces: Sequence[bytes] = PIECES) -> Side:
    backend, draft_backend = (
        ScriptedBackend(CONFIG.slots, 300, rows, vocabulary=len(pieces), rewinds=rewinds)
        for rows in (CONFIG.rows_max, CATCH_UP_TOKENS_MAX)
    )
    drafter: Drafter | None = DraftModel(draft_backend) if drafts else None
    engine = Engine(backend, pieces, frozenset({END}), CONFIG, drafter)
    engine.start()
    return Side(engine, backend)


@pytest.fixture
async def plain() -> AsyncIterator[Side]:
    started = side()
    yield started
    await asyncio.to_thread(started.engine.close)


def held(foreseen: bool = True) -> Constraint:
    vocabulary = VOCABULARY if foreseen else Vocabulary(PIECES, frozenset({END}))
    return vocabulary.compile(GRAMMAR).start()


Said = tuple[list[int], str, Finish | None, list[float]]


async def said(handle: Handle) -> Said:
    deltas = [delta async for delta in handle]
    logprobs = [told.logprob for delta in deltas for told in delta.logprobs]
    assert sum(delta.tokens for delta in deltas) == len(handle.ids)
    return handle.ids, "".join(delta.text for delta in deltas), handle.finish, logprobs


async def both(on: Side, sampling: Sampling, prompt: Sequence[int] = (1, 2)) -> tuple[Said, Said]:
    """With and without foreseeing, in this order; without, the prompt comes to a cache that knows it."""
    foreseen = await said(on.engine.submit(prompt, sampling, constraint=held()))
    return foreseen, await said(on.engine.submit(prompt, sampling, constraint=held(foreseen=False)))


async def test_text_without_a_choice_takes_fewer_steps_and_changes_no_token(plain: Side) -> None:
    await said(plain.engine.submit([3] * 40, GREEDY))  # the engine learns what steps cost
    before = len(plain.backend.steps)
    ids, text, finish, _ = await said(plain.engine.submit([1, 2], GREEDY, constraint=held()))
    steps = len(plain.backend.steps) - before
    assert (ids, text, finish) == (await said(plain.engine.submit([1, 2], GREEDY, constraint=held(False))))[:3]
    assert len(ids) == TOKENS and finish is Finish.STOP and "DEFGHIJKLMNOPQRSTUVWXYZ" in text
    assert steps < TOKENS / 2
    assert plain.engine.speculation.stats()["forced_total"] > TOKENS / 2


@pytest.mark.parametrize(
    "settings",
    [
        {"top_logprobs": 3},
        {"temperature": 1.5, "seed": 5, "top_logprobs": 0},
        {"frequency_penalty": 1.0, "presence_penalty": 0.5, "top_logprobs": 1},
        {"logit_bias": {4: 9.0, 25: -9.0}},
    ],
)
async def test_likelihoods_penalties_and_seeds_are_those_of_single_steps(plain: Side, settings: dict[str, Any]) -> None:
    foreseen, alone = await both(plain, replace(GREEDY, **settings))
    assert foreseen == alone
    assert len(foreseen[3]) == (len(foreseen[0]) if "top_logprobs" in settings else 0)


async def test_an_answer_ends_where_it_would_token_by_token(plain: Side) -> None:
    for count in range(1, 40, 3):
        foreseen, alone = await both(plain, replace(GREEDY, max_tokens=count))
        assert foreseen == alone and len(foreseen[0]) == count and foreseen[2] is Finish.LENGTH


async def test_a_context_is_filled_to_its_end(plain: Side) -> None:
    for length in range(270, 299, 7):
        foreseen, alone = await both(plain, GREEDY, [5] * length)
        assert foreseen == alone and len(foreseen[0]) == 300 - length


async def test_the_next_turn_finds_the_whole_answer_in_the_cache(plain: Side) -> None:
    ids, *_ = await said(plain.engine.submit([9, 9], GREEDY, constraint=held()))
    following = plain.engine.submit([9, 9, *ids, 4], replace(GREEDY, max_tokens=3))
    await said(following)
    assert following.facts.cached_tokens >= len(ids) + 1


async def test_a_model_that_cuts_the_text_otherwise_is_not_overruled() -> None:
    pieces = [b"DE", b"VW", *PIECES[2:]]
    vocabulary = Vocabulary(pieces, frozenset({END}), letters)
    started = side(pieces=pieces)
    await said(started.engine.submit([3] * 40, GREEDY))
    grammar = vocabulary.compile('start: ("C" "DEFGHIJKLMNOPQRSTUVWXYZ"){6}')
    ids, text, *_ = await said(started.engine.submit([1], replace(GREEDY, max_tokens=300), constraint=grammar.start()))
    assert text == "CDEFGHIJKLMNOPQRSTUVWXYZ" * 6
    assert ids.count(0) == ids.count(1) == 6
    assert started.engine.speculation.stats()["forced_total"] > 0
    await asyncio.to_thread(started.engine.close)


@pytest.mark.parametrize(("settings", "rewinds"), [({"deterministic": True}, True), ({}, False)])
async def test_what_must_not_be_drafted_goes_token_by_token(settings: dict[str, Any], rewinds: bool) -> None:
    started = side(rewinds=rewinds)
    await said(started.engine.submit([3] * 40, GREEDY))
    ids, *_ = await said(started.engine.submit([1, 2], replace(GREEDY, **settings), constraint=held()))
    assert len(ids) == TOKENS and started.engine.speculation.stats()["forced_total"] == 0
    assert set(started.backend.steps[-TOKENS:]) == {1}
    await asyncio.to_thread(started.engine.close)


async def test_a_drafter_guesses_beside_it_and_keeps_its_own_count() -> None:
    started, alone = side(drafts=True), side()
    warm = started.engine.submit([3] * 40, GREEDY)
    await said(warm)
    prompts = [[n, n, n] for n in range(6)]
    constraints = [held() if n % 2 else None for n in range(6)]
    handles = [
        started.engine.submit(prompt, GREEDY, constraint=constraint)
        for prompt, constraint in zip(prompts, constraints, strict=True)
    ]
    answers = await asyncio.gather(*map(said, handles))
    for n, prompt in enumerate(prompts):
        assert answers[n] == await said(alone.engine.submit(prompt, GREEDY, constraint=held(False) if n % 2 else None))
    stats = started.engine.speculation.stats()
    assert stats["drafted_total"] == sum(handle.facts.acceptance.drafted for handle in [warm, *handles])
    assert stats["accepted_total"] == sum(handle.facts.acceptance.accepted for handle in [warm, *handles])
    assert stats["forced_total"] > 0
    for engine in (started.engine, alone.engine):
        await asyncio.to_thread(engine.close)


async def test_a_draft_is_never_longer_than_the_device_can_tell_of() -> None:
    """Three streams, each with more text without a choice than fits all of them."""
    started = side()
    await said(started.engine.submit([3] * 40, GREEDY))
    handles = [started.engine.submit([n], GREEDY, constraint=held()) for n in range(3)]
    assert all(answer[2] is Finish.STOP for answer in await asyncio.gather(*map(said, handles)))
    assert max(started.backend.steps[-TOKENS:]) <= CONFIG.outputs_max
    await asyncio.to_thread(started.engine.close)


# --- the bundled model ---

RECORD = {"full_name": "Ada Lovelace", "is_customer": True, "kind_of_record": "customer order"}
SCHEMA = {
    "type": "object",
    "properties": {name: {"const": value} for name, value in RECORD.items()},
    "required": [*RECORD],
}


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=2, resident=2))
    await model.start()
    yield model
    await model.close()


@pytest.mark.any_answer("the grammar leaves one text")
async def test_the_bundled_model_writes_a_record_in_fewer_steps_than_tokens(model: ChatModel) -> None:
    prompt = model.encode(model.render([ChatMessage("user", "Who are you?")]))
    before = int(model.stats()["steps_total"])
    generation = model.generate(prompt, replace(GREEDY, grammar=model.prepare(json_grammar(SCHEMA))))
    text = "".join([delta.text async for delta in generation])
    steps = int(model.stats()["steps_total"]) - before
    assert json.loads(text) == RECORD
    assert steps < 0.8 * len(generation.ids)


@pytest.mark.any_answer("the grammar leaves one text")
async def test_a_long_text_without_a_choice_is_written_to_its_end(model: ChatModel) -> None:
    """Looking so far ahead would take all the fuel at once: of such texts nothing is foreseen."""
    prompt = model.encode(model.render([ChatMessage("user", "Who are you?")]))
    grammar = model.prepare(json_grammar({"const": "ab " * 20_000}))
    generation = model.generate(prompt, replace(GREEDY, max_tokens=200, grammar=grammar))
    text = "".join([delta.text async for delta in generation])
    assert json.dumps("ab " * 20_000).startswith(text) and generation.finish is Finish.LENGTH


def test_looking_ahead_of_a_text_that_repeats_takes_nothing_from_what_follows() -> None:
    state = VOCABULARY.compile('start: "ABCDEFGH"{2000}').start()
    for token in letters("ABCDEFGH" * 10):
        state.forced()
        assert state.allows(token)
        state.accept(token)
    assert not state.forced()  # reading it to its end once was enough


def test_looking_ahead_changes_nothing_of_what_is_allowed() -> None:
    for text in ("ABCDEFGHIJKLMNOPQRSTUVWXYZAAA", "CCCDEF"):
        looking, blind = held(), held()
        for token in letters(text):
            looking.forced()
            every = np.arange(len(PIECES))
            assert (looking.allowed(every) == blind.allowed(every)).all()
            assert all(looking.allows(each) == blind.allows(each) for each in range(len(PIECES)))
            looking.accept(token)
            blind.accept(token)
