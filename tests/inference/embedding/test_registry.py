"""Several embedding models at once: the default is there, the others come when they are needed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from inference.bundled import CHAT_MODEL, EMBEDDER
from inference.embedding.embedder import Embedder
from inference.embedding.registry import EMBEDDERS_MAX, EmbedderFile, Embedders
from inference.errors import EmbedderNotLoaded, EngineStopped, ModelNotLoaded, UnknownEmbedder
from inference.llama import version_of
from tests.inference.encoders import write_encoder

BUNDLED = "minilm-l6-v2"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 32 dimensions that reads at most 24 tokens."""
    return write_encoder(tmp_path_factory.mktemp("models") / "words-32-f32.gguf", 32, context=24)


def beside_the_bundled(path: Path) -> Embedders:
    """As `Embedders.load` makes them, without a process in which the file is tried first."""
    return Embedders(Embedder.load(EMBEDDER), [EmbedderFile.examine(path)])


@pytest.fixture
async def embedders(words: Path) -> AsyncIterator[Embedders]:
    embedders = beside_the_bundled(words)
    yield embedders
    await embedders.close()


async def test_the_default_is_there_and_another_model_comes_when_it_is_needed(embedders: Embedders) -> None:
    assert embedders.names == [BUNDLED, "words-32"]
    assert [embedders.dimensions(name) for name in embedders.names] == [384, 32]
    assert embedders.states == {BUNDLED: "loaded", "words-32": "waiting"}
    assert await embedders.get(BUNDLED) is embedders.default
    words = await embedders.get("words-32")
    assert (words.name, words.dimensions) == ("words-32", 32)
    assert embedders.states == {BUNDLED: "loaded", "words-32": "loaded"}


async def test_a_model_that_several_need_is_loaded_once(embedders: Embedders) -> None:
    embedders.prepare("words-32")
    assert embedders.states["words-32"] == "loading"
    impatient = asyncio.create_task(embedders.get("words-32"))
    await asyncio.sleep(0)
    impatient.cancel()
    first, second = await asyncio.gather(embedders.get("words-32"), embedders.get("words-32"))
    assert first is second
    assert impatient.cancelled()


async def test_each_model_keeps_its_own_queries(embedders: Embedders) -> None:
    words = await embedders.get("words-32")
    query = await words.embed_query("who guards the gate", salt="a")
    assert query.vector.shape == (32,)
    assert embedders.knows("words-32", "who guards the gate", salt="a")
    assert not embedders.knows(BUNDLED, "who guards the gate", salt="a")
    assert not embedders.knows("another", "who guards the gate", salt="a")


async def test_of_a_text_longer_than_a_model_reads_the_beginning_counts(embedders: Embedders) -> None:
    words = await embedders.get("words-32")
    first, second = await words.embed(["apples and pears " * 20, "apples and pears " * 20 + "the end of the story"])
    assert first @ second > 0.99999
    assert np.isfinite(first).all()


async def test_an_unknown_model_is_refused_with_the_ones_there_are(embedders: Embedders) -> None:
    for ask in (embedders.dimensions, embedders.prepare):
        with pytest.raises(UnknownEmbedder, match=f"'gpt-9' on this worker. Available: {BUNDLED}, words-32."):
            ask("gpt-9")
    with pytest.raises(UnknownEmbedder):
        await embedders.get("gpt-9")


async def test_a_file_that_is_gone_when_it_is_needed_is_looked_for_again(words: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(words, tmp_path / "late.gguf"))
    embedders = beside_the_bundled(path)
    away = shutil.move(path, tmp_path / "away.gguf")
    with pytest.raises(EmbedderNotLoaded, match="'late' could not be loaded"):
        await embedders.get("late")
    assert embedders.states["late"] == "waiting"
    shutil.move(away, path)
    assert (await embedders.get("late")).dimensions == 32
    await embedders.close()


async def test_a_file_that_became_another_model_is_not_used(words: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(words, tmp_path / "late.gguf"))
    embedders = beside_the_bundled(path)
    shutil.copy(EMBEDDER, path)
    with pytest.raises(EmbedderNotLoaded):
        await embedders.get("late")
    await embedders.close()


def test_files_that_cannot_be_used_are_refused_at_the_start(words: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotLoaded, match=r"no model file at .*nothing\.gguf"):
        Embedders.load(EMBEDDER, [tmp_path / "nothing.gguf"])
    (tmp_path / "words-32.gguf").write_bytes(words.read_bytes())
    with pytest.raises(ModelNotLoaded, match="two embedding models are named words-32"):
        Embedders.load(EMBEDDER, [words, tmp_path / "words-32.gguf"])


def test_there_are_so_many_at_most(words: Path) -> None:
    default = Embedder.load(EMBEDDER)
    files = [EmbedderFile(words, f"words-{n}", 32, version_of(words)) for n in range(EMBEDDERS_MAX)]
    with pytest.raises(ModelNotLoaded, match=f"too many embedding models: {EMBEDDERS_MAX + 1}"):
        Embedders(default, files)
    assert len(Embedders(default, files[1:]).names) == EMBEDDERS_MAX
    default.close()


async def test_nothing_is_loaded_any_more_when_they_are_closed(words: Path) -> None:
    embedders = Embedders.load(EMBEDDER, [words])
    embedders.prepare("words-32")
    await embedders.close()
    with pytest.raises(EngineStopped):
        (await embedders.get("words-32")).count("too late")
    unused = beside_the_bundled(words)
    await unused.close()
    with pytest.raises(EngineStopped):
        await unused.get("words-32")


@pytest.mark.parametrize(
    ("path", "reason"),
    [(CHAT_MODEL, "not an encoder of the BERT family but"), (None, "neither mean nor first-token pooling")],
)
def test_a_model_that_cannot_embed_is_refused_at_the_start(path: Path | None, reason: str, tmp_path: Path) -> None:
    path = path or write_encoder(tmp_path / "ranker.gguf", 32, pooling=gguf.PoolingType.RANK)
    for refused in (lambda: Embedders.load(EMBEDDER, [path]), lambda: Embedder.load(path)):
        with pytest.raises(ModelNotLoaded, match=reason):
            refused()


async def test_the_file_says_how_a_vector_is_made_of_those_of_the_tokens(words: Path, tmp_path: Path) -> None:
    """In this model [CLS] has the same vector in every text."""
    first = Embedder.load(write_encoder(tmp_path / "first.gguf", 32, pooling=gguf.PoolingType.CLS))
    mean = Embedder.load(words)
    for embedder, same in ((first, True), (mean, False)):
        one, other = await embedder.embed(["apples", "pears"])
        assert bool(one @ other > 0.99999) is same
        assert (await embedder.embed_query("apples", salt="a")).vector @ one > 0.99999
        [passage] = await embedder.embed_windows(["apples"])
        assert passage.vector @ one > 0.99999
        embedder.close()


def test_a_file_is_tried_in_a_process_of_its_own_at_the_start(words: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(words.read_bytes()[:-1000])
    with pytest.raises(ModelNotLoaded, match=r"cut.gguf cannot embed: .*truncated"):
        Embedders.load(EMBEDDER, [path])
