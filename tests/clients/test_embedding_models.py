"""Stores of several embedding models at one worker, through the official client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import VectorStore

from tests.clients.conftest import MODEL
from tests.inference.encoders import write_encoder
from tests.serving import Worker
from tests.worker.cli.test_main import firsttoken

BUNDLED, WORDS = "minilm-l6-v2", "words-48"
HARBOUR = b"# Harbour\n\nShips enter the harbour at high tide. A berth costs 40 euros a night.\n"
BREAD = b"# Bread\n\nKnead flour, water and salt, then bake the dough for an hour.\n"


@pytest.fixture(scope="module")
def home(make_home: Callable[[], Path]) -> Path:
    return make_home()


@pytest.fixture(scope="module")
def words(home: Path) -> Path:
    return write_encoder(home / f"{WORDS}-f32.gguf", 48)


@pytest.fixture(scope="module")
def url(home: Path, words: Path) -> Iterator[str]:
    options = ("--embedders", str(words), "--docs", "", "--targets", "")  # all passages, on a slow machine too
    worker = Worker(home, *options, program="tests.patient_worker")
    yield worker.wait_until_ready()["url"]
    assert worker.stop() == 0


@pytest.fixture(scope="module")
def client(home: Path, url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key=(home / "local.key").read_text().strip(), max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def stores(client: OpenAI) -> tuple[VectorStore, VectorStore]:
    """The harbour's with the default model, the bread's with the other one."""
    harbour = client.vector_stores.create(name="harbour")
    bread = client.vector_stores.create(name="bread", extra_body={"firsttoken_embedding_model": WORDS})
    for store, name, text in ((harbour, "harbour.md", HARBOUR), (bread, "bread.md", BREAD)):
        done = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=(name, text))
        assert done.status == "completed", done.last_error
    return harbour, bread


def states(client: OpenAI) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {client.api_key}"}
    state = httpx.get(str(client.base_url.copy_with(path="/ops/api/state")), headers=headers)
    found: dict[str, str] = state.json()["embedders"]
    return found


def test_a_model_is_loaded_for_who_is_about_to_ask_its_stores(client: OpenAI) -> None:
    assert {BUNDLED, WORDS} <= {model.id for model in client.models.list()}
    store = client.vector_stores.create(extra_body={"firsttoken_embedding_model": WORDS})
    assert states(client) == {BUNDLED: "loaded", WORDS: "waiting"}
    search = {"type": "file_search", "vector_store_ids": [store.id]}
    client.post("/conversations/warm", body={"model": MODEL, "tools": [search]}, cast_to=httpx.Response)
    give_up_at = time.monotonic() + 60
    while states(client)[WORDS] != "loaded":
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def test_a_store_says_which_model_it_has(stores: tuple[VectorStore, VectorStore], client: OpenAI) -> None:
    models = [client.vector_stores.retrieve(store.id).to_dict()["firsttoken_embedding_model"] for store in stores]
    assert models == [BUNDLED, WORDS]


def test_each_is_searched_with_its_own(stores: tuple[VectorStore, VectorStore], client: OpenAI) -> None:
    for store, query, filename in zip(
        stores, ("What is a berth?", "bake the dough"), ("harbour.md", "bread.md"), strict=True
    ):
        assert [found.filename for found in client.vector_stores.search(store.id, query=query)] == [filename]


def test_one_answer_has_passages_of_both(stores: tuple[VectorStore, VectorStore], client: OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL,
        input="What does a berth cost, and how long to bake the dough?",
        tools=[{"type": "file_search", "vector_store_ids": [store.id for store in stores]}],
        include=["file_search_call.results"],
        max_output_tokens=16,
    )
    [call] = [item for item in answer.output if item.type == "file_search_call"]
    assert {result.filename for result in call.results or ()} == {"harbour.md", "bread.md"}


def test_text_is_embedded_with_the_model_that_is_named(client: OpenAI) -> None:
    for model, dimensions in ((BUNDLED, 384), (WORDS, 48)):
        made = client.embeddings.create(model=model, input="a berth")
        assert (made.model, len(made.data[0].embedding)) == (model, dimensions)


def test_an_unknown_model_is_refused_with_the_ones_there_are(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=rf"Available: {BUNDLED}, {WORDS}\.$") as caught:
        client.vector_stores.create(extra_body={"firsttoken_embedding_model": "gpt-9"})
    assert caught.value.param == "firsttoken_embedding_model"
    for name in ("", "x" * 300, 7):
        with pytest.raises(openai.BadRequestError):
            client.vector_stores.create(extra_body={"firsttoken_embedding_model": name})


@pytest.fixture
def poorer(home: Path) -> Iterator[OpenAI]:
    """Another worker of the same database, which has the bundled model alone."""
    worker = Worker(home, "--docs", "", name="poorer")
    ready = worker.wait_until_ready()
    with OpenAI(base_url=f"{ready['url']}/v1", api_key=ready["api_key"], max_retries=0) as client:
        yield client
    assert worker.stop() == 0


def test_without_its_model_a_store_is_refused_by_name(stores: tuple[VectorStore, VectorStore], poorer: OpenAI) -> None:
    harbour, bread = stores
    file = poorer.files.create(file=("more.md", BREAD), purpose="assistants")
    both: Any = {"type": "file_search", "vector_store_ids": [harbour.id, bread.id]}
    for attempt in (
        lambda: poorer.vector_stores.search(bread.id, query="dough"),
        lambda: poorer.vector_stores.files.create(bread.id, file_id=file.id),
        lambda: poorer.responses.create(model=MODEL, input="dough?", tools=[both]),
    ):
        with pytest.raises(openai.ConflictError, match=f"'bread' was made with the embedding model {WORDS} of 48"):
            attempt()
    assert poorer.vector_stores.search(harbour.id, query="What does a berth cost?").data


@pytest.mark.usefixtures("stores")
def test_a_command_without_the_model_is_refused_too(home: Path) -> None:
    done = firsttoken("ingest", str(home / "local.key"), "--store", "bread", "--home", str(home))
    assert done.returncode == 1
    assert f"embedding model {WORDS}" in done.stderr and "Traceback" not in done.stderr
