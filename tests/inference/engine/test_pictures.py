"""Pictures in the engine: part of the same batches and the same cache as text, and encoded beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from inference.bundled import DRAFT_MODEL
from inference.config import EngineConfig
from inference.engine.engine import Engine
from inference.errors import InferenceError, NotDeterministic, UnseenPicture
from inference.generation import Delta, Finish, Sampling, Terms
from inference.model import ChatModel
from inference.picture import Layout, Picture, PictureRange, PictureTokens
from inference.prompt import ChatMessage, PlacedPicture, PromptTokens, image_tokens
from inference.request import Handle
from inference.speculative.draft_model import CATCH_UP_TOKENS_MAX, DraftModel
from tests.inference.projectors import Kind, picture, write_projector
from tests.scripted import ScriptedBackend

CONFIG = EngineConfig(parallel=2, resident=2, context=512, threads=1)
GREEDY = Sampling(max_tokens=4, temperature=0.0, top_logprobs=1)
ROUNDING_NATS = 0.2  # rows in batches of another size are computed by other kernels
LONG = "Tell me what there is to see, and whether it is red or blue or something else. " * 2
VOCABULARY = 26  # of the scripted device
RED, BLUE = picture(1), picture(2, 300, 200)
pytestmark = pytest.mark.any_answer("random projectors: what counts is how likely the answer begins, to a few digits")


@pytest.fixture(scope="module", params=["gemma3", "pixtral"])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture(scope="module")
def projector(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_projector(tmp_path_factory.mktemp("pictures") / f"{kind}.gguf", kind, 384)


@pytest.fixture
async def model(projector: Path) -> AsyncIterator[ChatModel]:
    model = ChatModel.load(replace(CONFIG, projector_path=projector))
    await model.start()
    yield model
    await model.close()


class Answer(NamedTuple):
    handle: Handle
    first: float  # log probability of its first token; 0 if it is empty

    @property
    def cached(self) -> int:
        return self.handle.facts.cached_tokens

    @property
    def encoded(self) -> bool:
        return self.handle.facts.spent.sight_ns > 0


def prompt_of(model: ChatModel, text: str, *pictures: Picture, salt: str = "") -> PromptTokens:
    """The pictures, then the text."""
    message = ChatMessage("user", text, pictures=tuple(PlacedPicture(0, each) for each in pictures))
    return model.encode(model.render([message], salt=salt), salt=salt)


def submit(model: ChatModel, prompt: Sequence[int], sampling: Sampling = GREEDY, *, salt: str = "") -> Handle:
    return model.generate(prompt, sampling, Terms(salt))


async def answer(model: ChatModel, text: str, *pictures: Picture, salt: str = "") -> Answer:
    handle, said = submit(model, prompt_of(model, text, *pictures, salt=salt), salt=salt), list[Delta]()
    await handle.stream(said.append)
    return Answer(handle, next((each.logprob for delta in said for each in delta.logprobs), 0.0))


def end_of_pictures(prompt: PromptTokens) -> int:
    return prompt.pictures[-1].end


async def test_a_second_question_about_a_picture_computes_only_its_own_text(model: ChatModel) -> None:
    first = await answer(model, "What is this?", RED)
    assert first.encoded
    again = await answer(model, "What is this?", RED)
    assert (again.cached, again.encoded) == (first.handle.prompt_tokens, False)
    assert again.first == pytest.approx(first.first, abs=ROUNDING_NATS)
    prompt = prompt_of(model, "Is it red?", RED)
    second = await answer(model, "Is it red?", RED)
    assert second.cached >= end_of_pictures(prompt)
    assert not second.encoded
    assert image_tokens(prompt) == sum(len(placed.tokens.ids) for placed in prompt.pictures) > 0
    assert model.is_busy is False


async def test_two_pictures_are_told_apart_and_the_first_is_shared(model: ChatModel) -> None:
    one = prompt_of(model, "Which?", RED)
    await answer(model, "Which?", RED)
    both = await answer(model, "Which?", RED, BLUE)
    assert end_of_pictures(one) <= both.cached < end_of_pictures(prompt_of(model, "Which?", RED, BLUE))
    turned = await answer(model, "Which?", BLUE, RED)
    assert turned.cached <= prompt_of(model, "Which?", BLUE, RED).pictures[0].start


async def test_the_picture_of_one_tenant_is_not_found_by_another(model: ChatModel) -> None:
    mine = await answer(model, "What is this?", RED, salt="mine")
    theirs = await answer(model, "What is this?", RED, salt="theirs")
    assert theirs.cached <= prompt_of(model, "What is this?", RED).pictures[0].start
    assert theirs.encoded
    assert theirs.first == pytest.approx(mine.first, abs=ROUNDING_NATS)


async def test_a_parked_picture_comes_back_without_being_encoded_again(projector: Path) -> None:
    model = ChatModel.load(replace(CONFIG, parallel=1, resident=0, projector_path=projector))
    await model.start()
    first = await answer(model, LONG, RED)
    await answer(model, "Tell me a story of a dog. " * 8)
    again = await answer(model, LONG, RED)
    assert again.cached >= end_of_pictures(prompt_of(model, "What is this?", RED))
    assert not again.encoded
    assert again.first == pytest.approx(first.first, abs=ROUNDING_NATS)
    await model.close()


async def test_a_picture_is_on_disk_after_a_restart(projector: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, projector_path=projector, disk_folder=tmp_path, disk_bytes_max=2**30)
    answers: list[Answer] = []
    for _ in range(2):
        model = ChatModel.load(config)
        await model.start()
        answers.append(await answer(model, LONG * 8, RED))
        end = end_of_pictures(prompt_of(model, LONG * 8, RED))
        await model.close()
    assert answers[1].cached >= end
    assert [each.encoded for each in answers] == [True, False]
    assert answers[1].first == pytest.approx(answers[0].first, abs=ROUNDING_NATS)


async def test_prompts_without_pictures_are_cached_as_ever(model: ChatModel) -> None:
    await answer(model, "Tell me a story.", RED)
    assert (await answer(model, "Tell me a story.")).cached < (await answer(model, "Tell me a story.")).cached
    again = await answer(model, "Tell me a story.")
    assert again.cached == again.handle.prompt_tokens


class Slow:
    """An encoder that goes on when it is told to."""

    def __init__(self, model: ChatModel, monkeypatch: pytest.MonkeyPatch, error: InferenceError | None = None) -> None:
        assert model.vision is not None
        self.begun, self._error, self._encode = 0, error, model.vision.encode
        self.began, self.opened = threading.Event(), threading.Event()
        monkeypatch.setattr(model.vision, "encode", self.encode)

    def encode(self, picture: Picture) -> list[NDArray[np.float32]]:
        self.begun += 1
        self.began.set()
        self.opened.wait()
        if self._error:
            raise self._error
        return self._encode(picture)


async def test_others_go_on_while_a_picture_is_encoded_and_equal_ones_are_encoded_once(
    model: ChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Slow(model, monkeypatch)
    prompt = prompt_of(model, "What is this?", RED)
    seeing = [submit(model, prompt) for _ in range(2)]
    asked = [asyncio.create_task(handle.stream(lambda _: None)) for handle in seeing]
    await asyncio.to_thread(encoder.began.wait)
    seeing[1].cancel()
    await asked[1]
    assert seeing[1].finish is Finish.CANCELLED
    text = await answer(model, "Hello")
    assert text.handle.finish in (Finish.STOP, Finish.LENGTH)
    assert not asked[0].done()
    encoder.opened.set()
    await asked[0]
    assert seeing[0].finish in (Finish.STOP, Finish.LENGTH)
    assert encoder.begun == 1


async def test_a_picture_that_cannot_be_encoded_ends_its_own_request_alone(
    model: ChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Slow(model, monkeypatch, InferenceError("no memory for an image"))
    encoder.opened.set()
    with pytest.raises(InferenceError, match="no memory for an image"):
        await answer(model, "What is this?", RED)
    assert (await answer(model, "Hello")).handle.finish in (Finish.STOP, Finish.LENGTH)


async def test_a_deadline_ends_a_request_that_waits_for_its_picture(
    model: ChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Slow(model, monkeypatch)
    handle = model.generate(prompt_of(model, "What is this?", RED), GREEDY, Terms(deadline_ns=1))
    await handle.stream(lambda _: None)
    assert handle.finish is Finish.DEADLINE
    encoder.opened.set()


async def test_a_prompt_that_has_lost_its_pictures_is_refused(model: ChatModel) -> None:
    prompt = prompt_of(model, "What is this?", RED)
    with pytest.raises(UnseenPicture, match="the prompt had images"):
        submit(model, list(prompt))
    with pytest.raises(NotDeterministic, match=r"without images|need a CPU"):
        submit(model, prompt, replace(GREEDY, deterministic=True))


async def test_a_model_without_a_projector_refuses_a_picture_by_its_name() -> None:
    model = ChatModel.load(CONFIG)
    with pytest.raises(UnseenPicture, match="the model 'demo-chat' cannot see images"):
        prompt_of(model, "What is this?", RED)
    assert not model.sees
    await model.close()


class Blots:
    """An encoder that sees nothing: each picture is four ids."""

    def layout(self, picture: Picture) -> Layout:
        return [PictureTokens.of(picture, 0, 4, VOCABULARY, b"", bidirectional=False)]

    def encode(self, picture: Picture) -> list[NDArray[np.float32]]:
        return [np.zeros((4, 1), np.float32)]

    def close(self) -> None:
        pass


async def test_there_are_no_drafts_beside_pictures() -> None:
    config = EngineConfig(draft_path=DRAFT_MODEL, parallel=1, resident=1, draft_min=4, draft_max=4)
    backend, drafting = (
        ScriptedBackend(config.slots, context=300, rows_max=rows, vocabulary=VOCABULARY)
        for rows in (config.rows_max, CATCH_UP_TOKENS_MAX)
    )
    pieces = [bytes([65 + token]) for token in range(VOCABULARY)]
    engine = Engine(backend, pieces, frozenset(), config, DraftModel(drafting), vision=Blots())
    engine.start()
    (tokens,) = Blots().layout(RED)
    assert isinstance(tokens, PictureTokens)
    drafted = []
    for prompt in (PromptTokens([1, 2, 3]), PromptTokens([1, *tokens.ids, 2], pictures=[PictureRange(1, tokens)])):
        handle = engine.submit(prompt, Sampling(temperature=0.0, max_tokens=30))
        await handle.stream(lambda _: None)
        drafted.append(handle.facts.acceptance.drafted)
    assert drafted[0] > 0
    assert drafted[1] == 0
    await asyncio.to_thread(engine.close)


async def test_the_pictures_of_a_prompt_lie_where_their_ids_stand(model: ChatModel) -> None:
    prompt = prompt_of(model, "Which?", RED, BLUE)
    assert [placed.tokens.picture for placed in prompt.pictures] == [RED, BLUE]
    for placed in prompt.pictures:
        assert tuple(prompt[placed.start : placed.end]) == placed.tokens.ids
        assert isinstance(placed.tokens, PictureTokens)
