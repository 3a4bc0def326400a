from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.bundled import EMBEDDER
from inference.embedding.embedder import QUERY_BYTES, ROWS_MAX, SEQUENCES_MAX, TOKENS_MAX, Embedder
from inference.errors import EngineStopped, ModelNotLoaded
from inference.llama import batches


@pytest.fixture(scope="module")
def embedder() -> Iterator[Embedder]:
    embedder = Embedder.load(EMBEDDER)
    yield embedder
    embedder.close()


async def test_vectors_have_length_one_and_come_in_the_order_of_the_texts(embedder: Embedder) -> None:
    texts = ["a long text about the sea and its many fishes " * 5, "sea", "", "a database server"]
    vectors = await embedder.embed(texts)
    assert vectors.shape == (4, embedder.dimensions)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    one_at_a_time = np.concatenate([await embedder.embed([text]) for text in texts])
    assert np.einsum("ij,ij->i", vectors, one_at_a_time).min() > 0.999


async def test_what_means_the_same_is_nearer_than_what_does_not(embedder: Embedder) -> None:
    question, answer, other = await embedder.embed(
        ["How do I start the server?", "Run the command serve to launch the service.", "Cats sleep most of the day."]
    )
    assert question @ answer > question @ other + 0.2


async def test_no_texts_give_no_vectors(embedder: Embedder) -> None:
    assert (await embedder.embed([])).shape == (0, embedder.dimensions)
    assert await embedder.embed_windows([]) == []


async def test_of_a_text_that_is_too_long_the_beginning_counts(embedder: Embedder) -> None:
    beginning = "apples and pears " * TOKENS_MAX
    assert embedder.count(beginning) > TOKENS_MAX == await embedder.count_embedded([beginning])
    assert await embedder.count_embedded(["one", "two words"]) == await embedder.count_all(["one", "two words"])
    first, second = await embedder.embed([beginning, beginning + "the end of the story"])
    assert first @ second > 0.99999


async def test_the_event_loop_does_not_wait_while_texts_are_counted(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, texts = threading.Event(), ["one", "two words"]
    expected = sum(map(embedder.count, texts))
    count = embedder.count
    monkeypatch.setattr(embedder, "count", lambda text: count(text) if looked.wait(60) else 0)
    counting = asyncio.create_task(embedder.count_all(texts))
    await asyncio.sleep(0)
    looked.set()
    assert await counting == expected


async def test_text_that_looks_like_a_special_token_is_only_text(embedder: Embedder) -> None:
    assert embedder.count("[SEP]") > embedder.count("") + 1


async def test_a_query_that_is_asked_together_is_embedded_once(embedder: Embedder) -> None:
    first, second = await asyncio.gather(
        embedder.embed_query("who guards the gate", salt="a"), embedder.embed_query("who  guards the gate ", salt="a")
    )
    assert first is second
    assert embedder.knows("who guards\nthe gate", salt="a")
    assert await embedder.embed_query("who guards the gate", salt="a") is first


async def test_who_stops_waiting_for_a_query_leaves_the_others_waiting(embedder: Embedder) -> None:
    impatient = asyncio.create_task(embedder.embed_query("where is the mill", salt="a"))
    patient = asyncio.create_task(embedder.embed_query("where is the mill", salt="a"))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).vector.shape == (embedder.dimensions,)
    assert impatient.cancelled()


async def test_a_passage_keeps_its_mean_and_its_windows(embedder: Embedder) -> None:
    text = "The worker starts Postgres, applies the migrations and loads the model. " * 4
    [passage] = await embedder.embed_windows([text])
    assert passage.vector @ (await embedder.embed([text]))[0] > 0.9999
    assert passage.windows.shape == (len(passage.scales), embedder.dimensions)
    lengths = np.linalg.norm(passage.windows * passage.scales.astype(np.float32)[:, None], axis=1)
    assert np.allclose(lengths, 1, atol=0.01)


async def test_a_query_has_a_vector_for_each_word_without_the_frame(embedder: Embedder) -> None:
    query = await embedder.embed_query("start the server", salt="a")
    assert query.tokens.shape == (3, embedder.dimensions)
    assert np.allclose(np.linalg.norm(query.tokens, axis=1), 1, atol=1e-5)


async def test_a_query_asked_again_is_not_computed_again(embedder: Embedder) -> None:
    assert not embedder.knows("what is new?", salt="a")
    first = await embedder.embed_query("what is new?", salt="a")
    assert embedder.knows("what is new?", salt="a")
    assert await embedder.embed_query("what is new?", salt="a") is first


async def test_a_query_of_one_tenant_is_computed_again_for_another(embedder: Embedder) -> None:
    first, second = await asyncio.gather(
        embedder.embed_query("what do we pay?", salt="a"), embedder.embed_query("what do we pay?", salt="b")
    )
    assert first is not second
    assert [embedder.knows("what do we pay?", salt=salt) for salt in "abc"] == [True, True, False]


async def test_the_query_that_was_not_asked_for_longest_is_forgotten() -> None:
    embedder = Embedder.load(EMBEDDER)
    vectors = await embedder.embed_query("zero", salt="a")
    embedder.close()
    one = QUERY_BYTES + vectors.vector.nbytes + vectors.tokens.nbytes
    embedder = Embedder.load(EMBEDDER, queries_bytes_max=2 * one + 40)  # of one word each, with up to five letters
    for query in ("one", "two", "one", "three"):
        await embedder.embed_query(query, salt="a")
    assert [embedder.knows(query, salt="a") for query in ("one", "two", "three")] == [True, False, True]
    await embedder.embed_query("a question that is longer than both of them together", salt="a")
    assert [embedder.knows(query, salt="a") for query in ("one", "three")] == [True, True]  # it did not fit at all
    embedder.close()


async def test_a_query_does_not_wait_for_the_whole_of_an_ingest(embedder: Embedder) -> None:
    ingest = asyncio.ensure_future(embedder.embed_windows(["many words in a passage " * 40] * 12))
    await asyncio.sleep(0)
    await embedder.embed_query("somebody is waiting for this", salt="a")
    assert not ingest.done()
    assert len(await ingest) == 12


def test_a_closed_embedder_counts_no_more() -> None:
    embedder = Embedder.load(EMBEDDER)
    embedder.close()
    with pytest.raises(EngineStopped):
        embedder.count("too late")


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotLoaded, match=r"no model file at .*nothing\.gguf"):
        Embedder.load(tmp_path / "nothing.gguf")


@given(st.lists(st.integers(1, TOKENS_MAX), max_size=100))
def test_every_text_is_in_one_batch_and_no_batch_is_too_large(lengths: list[int]) -> None:
    groups = batches(lengths, ROWS_MAX, SEQUENCES_MAX)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert 0 < len(group) <= SEQUENCES_MAX
        assert sum(lengths[index] for index in group) <= ROWS_MAX
