"""What followed the newest tokens before is guessed again; it changes how fast an answer comes, never what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.config import EngineConfig
from inference.engine.engine import Engine
from inference.engine.sampler import Sampler
from inference.generation import Predicted, Sampling, Terms
from inference.model import ChatModel
from inference.prompt import CacheScope, ChatMessage
from inference.request import Handle, Request
from inference.speculative.prompt_lookup import ORDERS, SEARCHED_TOKENS_MAX, Copy, Guess, PromptLookup
from inference.tokenizer import TextStream
from tests.scripted import ScriptedBackend

VOCABULARY = 26
PIECES = [bytes([65 + token]) for token in range(VOCABULARY)]
CONFIG = EngineConfig(lookup=True, parallel=3, resident=2, draft_min=4, draft_max=4)
GREEDY = Sampling(temperature=0, max_tokens=60)


def places(tokens: Sequence[int], n: int) -> list[int]:
    """Where the newest n tokens ended before."""
    return [end for end in range(n, len(tokens)) if tokens[end - n : end] == tokens[-n:]]


TOKENS = st.lists(st.integers(0, 3), max_size=12)


@given(TOKENS, st.lists(TOKENS, max_size=7), st.integers(1, 6))
def test_a_guess_is_what_followed_the_newest_tokens_before(
    prompt: list[int], parts: list[list[int]], length: int
) -> None:
    copy, answer = Copy(prompt), list[int]()
    for part in [[], *parts]:
        answer += part
        copy.read(answer)
        guess, text = copy.guess(length), prompt + answer
        before = places(text, ORDERS[-1])
        assert (guess is not None) == bool(before)
        assert guess is None or guess.tokens in [text[place : place + length] for place in before]


def guessed(prompt: list[int], answer: list[int], length: int = 1) -> Guess:
    copy = Copy(prompt)
    copy.read(answer)
    guess = copy.guess(length)
    assert guess is not None
    return guess


def test_more_tokens_that_recur_go_before_newer_ones() -> None:
    assert guessed([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], [], 2).tokens == [4, 9]


def test_a_copy_goes_on_where_it_is_although_its_newest_tokens_recur_later() -> None:
    """Lines of code have most n-grams in common."""
    assert guessed([1, 2, 3, 4, 5, 6, 0, 3, 4, 5, 8], [1, 2, 3, 4, 5], 2).tokens == [6, 0]


def test_a_copy_that_was_wrong_begins_anew_where_the_newest_tokens_were_last() -> None:
    assert guessed([1, 2, 3, 4, 0, 3, 9, 5], [1, 2, 3, 9], 2).tokens == [5, 1]


def test_what_the_model_writes_tells_how_good_guesses_are() -> None:
    passage = list(range(40))
    invented = [token for new in range(50, 80) for token in (7, 8, new)]  # always another one behind the same two
    assert guessed(passage, passage[10:35]).acceptance.per_token > 0.9
    assert guessed([], [*invented, 7, 8]).acceptance.per_token < 0.1


def test_copies_that_break_off_early_do_not_speak_against_one_that_has_lasted() -> None:
    passage = list(range(40))
    answer = [token for begin in range(0, 20, 2) for token in (begin, begin + 1, 100 + begin)]
    assert guessed(passage, [*answer, 20, 21]).acceptance.per_token < 0.2
    assert guessed(passage, [*answer, *passage[20:39]]).acceptance.per_token > 0.8


@pytest.mark.parametrize(
    ("predicted", "answer", "next_tokens"),
    [
        ([1, 2, 3, 4, 5], [], [1, 2, 3]),
        ([1, 2, 3, 4, 5], [1, 2], [3, 4, 5]),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], None),
        ([1, 2, 3, 4, 5], [9], None),
        ([1, 2, 3, 4, 5], [9, 1, 2], [3, 4, 5]),  # words before it
        ([1, 2, 3, 4, 5], [1, 2, 9, 3, 4], [5]),  # a word put in
        ([1, 2, 3, 4, 5, 6, 7], [1, 2, 5, 6], [7]),  # words left out
        ([7, 8, 1, 7, 8, 2, 7, 8, 3], [7, 8, 1, 9, 7, 8], [2, 7, 8]),  # the next of several places
        ([1, 2, 3, 4, 5, 6], [4, 5, 9, 1, 2], [3, 4, 5]),  # parts in another order
    ],
)
def test_an_answer_is_guessed_to_go_on_as_predicted_wherever_it_differed(
    predicted: list[int], answer: list[int], next_tokens: list[int] | None
) -> None:
    prediction = Copy((), predicted)
    prediction.read(answer)
    guess = prediction.guess(3)
    assert (guess and guess.tokens) == next_tokens
    assert guess is None or guess.predicted


def test_a_prediction_goes_before_what_the_text_has_and_alone_where_nothing_else_is_looked_up() -> None:
    both = request([1, 2, 3, 4, 1], 0, [2, 3], prediction=[2, 3, 7])
    neither = request([1, 2, 3, 4, 1, 2], 1, [3])
    for predicted_only in (False, True):
        lookup = PromptLookup(predicted_only=predicted_only)
        wanted = [(both, 4), (neither, 0 if predicted_only else 4)]
        one, other = lookup.look(wanted)
        assert (one.predicted, one.room, other.room) == (True, 1, 0 if predicted_only else 4)
        assert lookup.propose([(both, one.room)]) == {0: [7]}


def request(prompt: list[int], slot: int, generated: Sequence[int] = (), prediction: Sequence[int] = ()) -> Request:
    return Request(
        prompt,
        max_tokens=50,
        sampler=Sampler(Sampling()),
        text=TextStream(PIECES),
        scope=CacheScope(""),
        slot=slot,
        generated=list(generated),
        prediction=prediction,
    )


def test_of_a_very_long_prompt_the_end_is_looked_through() -> None:
    begin, end = [1, 2, 3, 4], [5, 6, 7, 8]
    filling = list(range(100, 100 + SEARCHED_TOKENS_MAX - 8))
    lookup = PromptLookup()
    asks_begin = request([*begin, *filling, *end, 1, 2], 0, [3])
    asks_end = request([*begin, *filling, *end, 5, 6], 1, [7])
    assert [stream.room for stream in lookup.look([(asks_begin, 4), (asks_end, 4)])] == [0, 4]
    assert lookup.propose([(asks_end, 2)]) == {1: [8, 5]}


def test_a_text_that_has_no_room_is_not_read() -> None:
    lookup, full = PromptLookup(), request([1, 2, 3, 1, 2], 0, [3])
    assert [stream.room for stream in lookup.look([(full, 0)])] == [0]


# --- in the engine ---


def parrot(prefix: Sequence[int]) -> int:
    """Says again what stood nine tokens before, but for every 13th token."""
    return (prefix[-9] + int(len(prefix) % 13 == 0)) % VOCABULARY if len(prefix) >= 9 else len(prefix)


class Parrot(ScriptedBackend):
    def _logits(self, prefix: Sequence[int]) -> NDArray[np.float32]:
        row = np.zeros(self.vocabulary, np.float32)
        row[parrot(prefix)] = 5.0
        return row


def expected(prompt: list[int], count: int) -> str:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(parrot(tokens))
    return b"".join(PIECES[token] for token in tokens[len(prompt) :]).decode()


async def text(handle: Handle) -> str:
    return "".join([delta.text async for delta in handle])


async def test_answers_that_copy_take_fewer_steps_and_are_the_same() -> None:
    backend = Parrot(CONFIG.slots, context=200, rows_max=CONFIG.rows_max, vocabulary=VOCABULARY)
    engine = Engine(backend, PIECES, frozenset(), CONFIG, PromptLookup())
    engine.start()
    prompts = [[n, n + 1, *range(15)] for n in range(7)]
    answers = await asyncio.gather(*(text(engine.submit(prompt, GREEDY)) for prompt in prompts))
    assert answers == [expected(prompt, 60) for prompt in prompts]
    stats = engine.speculation.stats()
    assert stats["accepted_total"] > 0.5 * stats["drafted_total"] > 0
    assert len(backend.steps) < 7 * 60 / 3 / 1.5
    to_the_end = engine.submit([4] * 150, replace(GREEDY, max_tokens=100))
    assert await text(to_the_end) == expected([4] * 150, 50)
    await asyncio.to_thread(engine.close)


async def test_a_deterministic_answer_is_guessed_by_nobody() -> None:
    backend = Parrot(CONFIG.slots, context=200, rows_max=CONFIG.rows_max, vocabulary=VOCABULARY)
    engine = Engine(backend, PIECES, frozenset(), CONFIG, PromptLookup())
    engine.start()
    handle = engine.submit([*range(15)], replace(GREEDY, deterministic=True))
    assert (await text(handle), handle.facts.acceptance.drafted) == (expected([*range(15)], 60), 0)
    await asyncio.to_thread(engine.close)


PREDICTING = replace(CONFIG, lookup=False, draft_min=16, draft_max=16)


class Cramped(Parrot):
    """Has rows with logits for no more than one token of each stream, and those that grammars force."""

    def decode(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        assert sum(chunk.outputs for chunk in chunks) <= PREDICTING.outputs_max
        return super().decode(chunks)


async def test_predictions_are_drafted_where_nothing_else_is_and_told_apart() -> None:
    backend = Cramped(PREDICTING.slots, context=200, rows_max=PREDICTING.rows_max, vocabulary=VOCABULARY)
    engine = Engine(backend, PIECES, frozenset(), PREDICTING, PromptLookup(predicted_only=True))
    engine.start()
    prompt = [*range(15)]
    right = [PIECES.index(bytes([letter])) for letter in expected(prompt, 60).encode()]
    half = [*right[:30], *[25] * 30]
    answers = [engine.submit(prompt, GREEDY, Terms(prediction=predicted)) for predicted in (right, half, (), [25] * 9)]
    assert [await text(answer) for answer in answers] == [expected(prompt, 60)] * 4
    all_of_it, part, nothing, wrong = (answer.facts.predicted for answer in answers)
    assert all_of_it.accepted > part.accepted > 20 and all_of_it.rejected == 0 < part.rejected
    assert (nothing, answers[2].facts.acceptance.drafted) == (Predicted(), 0)
    assert wrong.accepted == 0
    exact = engine.submit(prompt, replace(GREEDY, deterministic=True), Terms(prediction=right))
    assert (await text(exact), exact.facts.predicted) == (expected(prompt, 60), Predicted())
    await asyncio.to_thread(engine.close)


FACTS = {
    "Who wrote the first program?": "Ada Lovelace wrote the first program for the Analytical Engine in 1843.",
    "How long does the warranty of the blue kettle last?": "The warranty of the blue kettle lasts for 36 months.",
    "Which port does the archive listen on?": "The archive listens on port 7421 and writes to the folder /srv/archive.",
}


async def test_the_bundled_model_copies_facts_the_same_with_and_without_lookup() -> None:
    said = []
    for lookup in (True, False):
        config = EngineConfig(lookup=lookup, draft_min=3 * lookup, parallel=3, resident=0)
        model = await asyncio.to_thread(ChatModel.load, config)
        await model.start()
        asks = [f"Passages:\n[1] Notes: {fact}\n\nQuestion: {question}" for question, fact in FACTS.items()]
        talks = [[ChatMessage("system", "You are a helpful assistant."), ChatMessage("user", ask)] for ask in asks]
        handles = [model.generate(model.encode(model.render(talk)), GREEDY) for talk in talks]
        said.append(await asyncio.gather(*map(text, handles)))
        assert (model.stats()["accepted_total"] > 10) is lookup
        await model.close()
    assert said[0] == said[1]
