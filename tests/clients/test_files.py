"""Files and vector stores through the official client: sent, read in the background, found, and gone again."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import FileObject, VectorStore

from tests.clients.conftest import MODEL
from tests.serving import Worker
from tests.worker.cli.test_main import firsttoken

HARBOUR = b"# Harbour\n\nShips enter the harbour at high tide.\n\n## Fees\n\nA berth costs 40 euros a night.\n"
BREAD = b"# Bread\n\nKnead flour, water and salt, then bake the dough for an hour.\n"


@pytest.fixture
def file(client: OpenAI) -> Iterator[FileObject]:
    file = client.files.create(file=("harbour.md", HARBOUR), purpose="assistants")
    yield file
    if file.id in [each.id for each in client.files.list(limit=100)]:
        client.files.delete(file.id)


@pytest.fixture
def store(client: OpenAI, file: FileObject) -> Iterator[VectorStore]:
    store = client.vector_stores.create(metadata={"town": "Tallinn"})
    client.vector_stores.files.create_and_poll(
        file.id, vector_store_id=store.id, attributes={"kind": "guide", "year": 2024}, poll_interval_ms=50
    )
    yield client.vector_stores.retrieve(store.id)
    client.vector_stores.delete(store.id)


def test_a_file_comes_back_as_it_was_sent(client: OpenAI, file: FileObject) -> None:
    assert (file.object, file.filename, file.bytes, file.purpose) == ("file", "harbour.md", len(HARBOUR), "assistants")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == HARBOUR
    assert file.id in [each.id for each in client.files.list(purpose="assistants")]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_a_large_file_arrives_whole(client: OpenAI) -> None:
    data = bytes(range(256)) * 20_000  # more than a piece, more than is kept in memory
    file = client.files.create(file=("large.bin", data), purpose="user_data")
    assert client.files.content(file.id).read() == data
    client.files.delete(file.id)


def test_files_come_in_pages(client: OpenAI) -> None:
    sent = [client.files.create(file=(f"{i}.txt", b"x"), purpose="user_data").id for i in range(3)]
    page = client.files.list(limit=2, order="desc", purpose="user_data")
    assert [file.id for file in page.data] == [sent[2], sent[1]]
    assert page.has_more
    assert sent[0] in [file.id for file in page.get_next_page().data]
    for file_id in sent:
        client.files.delete(file_id)


@pytest.mark.parametrize(
    ("name", "purpose", "param"),
    [("a.txt", "fine-tune", "purpose"), ("..", "assistants", "file"), ("x" * 300, "assistants", "file")],
)
def test_what_is_wrong_with_a_form_is_named(client: OpenAI, name: str, purpose: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.files.create(file=(name, b"x"), purpose=purpose)
    assert wrong.value.param == param


def test_a_path_in_a_name_is_no_path_here(client: OpenAI) -> None:
    file = client.files.create(file=("../../etc/passwd.txt", b"x"), purpose="assistants")
    assert file.filename == "passwd.txt"
    client.files.delete(file.id)


def test_a_store_knows_its_files(client: OpenAI, store: VectorStore, file: FileObject) -> None:
    assert (store.status, store.usage_bytes, store.metadata) == ("completed", len(HARBOUR), {"town": "Tallinn"})
    assert (store.file_counts.completed, store.file_counts.total) == (1, 1)
    (listed,) = client.vector_stores.files.list(store.id)
    assert (listed.id, listed.status, listed.attributes) == (file.id, "completed", {"kind": "guide", "year": 2024})
    assert list(client.vector_stores.files.list(store.id, filter="failed")) == []
    (part,) = client.vector_stores.files.content(file.id, vector_store_id=store.id).data
    assert part.text is not None and "A berth costs 40 euros a night." in part.text


def test_a_search_finds_the_passage_with_its_attributes(client: OpenAI, store: VectorStore, file: FileObject) -> None:
    (found, *_) = client.vector_stores.search(store.id, query="What does a berth cost?").data
    assert (found.file_id, found.filename, found.attributes) == (file.id, "harbour.md", {"kind": "guide", "year": 2024})
    assert "40 euros" in found.content[0].text
    assert 0 < found.score <= 1
    of_another_year = {"type": "eq", "key": "year", "value": 1999}
    assert client.vector_stores.search(store.id, query="berth", filters=of_another_year).data == []  # type: ignore[arg-type]


def test_attributes_can_be_changed(client: OpenAI, store: VectorStore, file: FileObject) -> None:
    changed = client.vector_stores.files.update(file.id, vector_store_id=store.id, attributes={"kind": "old"})
    assert changed.attributes == {"kind": "old"}
    old = {"type": "eq", "key": "kind", "value": "old"}
    assert client.vector_stores.search(store.id, query="berth", filters=old).data  # type: ignore[arg-type]


def test_an_answer_is_found_in_what_was_sent(client: OpenAI, store: VectorStore, file: FileObject) -> None:
    response = client.responses.create(
        model=MODEL,
        input="What does a berth cost?",
        temperature=0,
        tools=[{"type": "file_search", "vector_store_ids": [store.id]}],
        include=["file_search_call.results"],
    )
    search = response.output[0]
    assert search.type == "file_search_call" and search.results
    assert search.results[0].file_id == file.id
    assert search.results[0].attributes == {"kind": "guide", "year": 2024}


def test_a_batch_reads_what_can_be_read_and_says_what_cannot(client: OpenAI) -> None:
    store = client.vector_stores.create(name="a batch")
    sent = [
        client.files.create(file=(name, data), purpose="assistants").id
        for name, data in (("bread.md", BREAD), ("empty.txt", b"  \n"), ("picture.png", b"\x89PNG"))
    ]
    batch = client.vector_stores.file_batches.create_and_poll(store.id, file_ids=sent, poll_interval_ms=50)
    assert (batch.status, batch.file_counts.completed, batch.file_counts.failed) == ("completed", 1, 2)
    failed = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id, filter="failed").data
    told = {file.id: file.last_error.message for file in failed if file.last_error}
    assert told[sent[1]] == "The file is empty."
    assert "*.png, which cannot be read" in told[sent[2]]
    client.vector_stores.delete(store.id)
    for file_id in sent:
        client.files.delete(file_id)


def test_a_file_of_two_batches_is_in_both(client: OpenAI) -> None:
    store, batches = client.vector_stores.create(name="two batches"), client.vector_stores.file_batches
    bread = client.files.create(file=("bread.md", BREAD), purpose="assistants").id
    both = [batches.create_and_poll(store.id, file_ids=[bread], poll_interval_ms=50) for _ in range(2)]
    for batch in both:
        assert batches.retrieve(batch.id, vector_store_id=store.id) == batch
        assert [file.id for file in batches.list_files(batch.id, vector_store_id=store.id)] == [bread]
        assert batches.cancel(batch.id, vector_store_id=store.id).status == "completed"  # nothing is left to cancel
    client.vector_stores.files.delete(bread, vector_store_id=store.id)
    assert batches.retrieve(both[0].id, vector_store_id=store.id).file_counts.completed == 1
    assert not batches.list_files(both[0].id, vector_store_id=store.id).data
    client.vector_stores.delete(store.id)
    with pytest.raises(openai.NotFoundError):
        batches.retrieve(both[0].id, vector_store_id=store.id)
    client.files.delete(bread)


def test_a_deleted_file_is_found_no_more(client: OpenAI, store: VectorStore, file: FileObject) -> None:
    client.files.delete(file.id)
    assert client.vector_stores.search(store.id, query="What does a berth cost?").data == []
    assert client.vector_stores.retrieve(store.id).file_counts.total == 0


def test_a_file_taken_out_of_a_store_stays_a_file(client: OpenAI, store: VectorStore, file: FileObject) -> None:
    assert client.vector_stores.files.delete(file.id, vector_store_id=store.id).deleted
    assert client.vector_stores.search(store.id, query="What does a berth cost?").data == []
    assert client.files.content(file.id).read() == HARBOUR


def test_a_store_gets_another_name_and_goes(client: OpenAI) -> None:
    store = client.vector_stores.create(name="one of many")
    assert client.vector_stores.update(store.id, name="another").name == "another"
    assert client.vector_stores.delete(store.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.retrieve(store.id)


def test_files_and_stores_of_another_tenant_do_not_exist(
    server: Mapping[str, Any], server_worker: Worker, store: VectorStore, file: FileObject
) -> None:
    home = str(server_worker.log.parent)
    made = firsttoken("keys", "create", "theirs", "--tenant", "stranger", "--home", home)
    with OpenAI(base_url=f"{server['url']}/v1", api_key=made.stdout.split()[0], max_retries=0) as stranger:
        assert file.id not in [each.id for each in stranger.files.list()]
        mine = stranger.vector_stores.create().id
        for attempt in (
            lambda: stranger.files.content(file.id),
            lambda: stranger.files.delete(file.id),
            lambda: stranger.vector_stores.retrieve(store.id),
            lambda: stranger.vector_stores.search(store.id, query="berth"),
            lambda: stranger.vector_stores.files.create(file_id=file.id, vector_store_id=mine),
            lambda: stranger.vector_stores.files.list(store.id),
        ):
            with pytest.raises(openai.NotFoundError):
                attempt()


def test_a_file_that_was_sent_can_be_part_of_a_question(client: OpenAI, file: FileObject) -> None:
    part: Any = {"type": "input_file", "file_id": file.id}
    ask: Any = {"type": "input_text", "text": "What is this?"}
    response = client.responses.create(model=MODEL, input=[{"role": "user", "content": [part, ask]}], temperature=0)
    assert response.status == "completed"
    assert response.usage is not None and response.usage.input_tokens > 20
    with pytest.raises(openai.BadRequestError):
        picture = client.files.create(file=io.BytesIO(b"\x89PNG"), purpose="user_data")
        client.responses.create(
            model=MODEL, input=[{"role": "user", "content": [{"type": "input_file", "file_id": picture.id}]}]
        )
