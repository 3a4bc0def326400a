"""Answers from documents under every template: the model reads the passages, and cites them or does without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.real_weights.behaviours import asking

HANDBOOK = b"""# Lighthouse of Grey Point

The lighthouse of Grey Point was built in 1874 by Eliza Marlow, an engineer from Bristol.

# Museum of Penrose

The museum of Penrose opens at nine and is closed on Mondays.
"""


@pytest.fixture(scope="module")
def handbook(client: OpenAI) -> Iterator[Any]:
    """The store with the document, and its file."""
    file = client.files.create(file=("handbook.md", HANDBOOK), purpose="assistants")
    store = client.vector_stores.create()
    client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id, poll_interval_ms=50)
    yield store.id, file.id
    client.vector_stores.delete(store.id)
    client.files.delete(file.id)


@asking("own", "strict", "alternating", "thinking")
def test_an_answer_cites_the_passages_it_was_given_or_none(client: OpenAI, handbook: Any, model: str) -> None:
    store, file = handbook
    asked: Any = {"model": model, "input": "Who built the lighthouse of Grey Point?", "temperature": 0}
    answer: Any = client.responses.create(
        **asked,
        tools=[{"type": "file_search", "vector_store_ids": [store]}],
        include=["file_search_call.results"],
        reasoning={"effort": "none"},
        max_output_tokens=32,
        store=False,
    )
    search, *said = answer.output
    assert search.type == "file_search_call" and "Eliza Marlow" in search.results[0].text
    plain = client.responses.input_tokens.count(model=model, input=asked["input"]).input_tokens
    assert answer.usage.input_tokens > plain + 20  # the passages
    parts = [part for item in said for part in item.content]  # it may write down a thought by itself
    assert any(part.text.strip() for part in parts)
    for part in parts:
        for annotation in getattr(part, "annotations", ()):
            assert annotation.file_id == file and "[" in part.text


@asking("own", "strict", "alternating")  # each takes them elsewhere
def test_instructions_after_the_question_keep_its_passages(client: OpenAI, handbook: Any, model: str) -> None:
    store, _ = handbook
    question: list[Any] = [
        {"role": "user", "content": "When does the museum of Penrose open?"},
        {"role": "developer", "content": "Answer in one word."},
    ]
    answer: Any = client.responses.create(
        model=model,
        input=question,
        tools=[{"type": "file_search", "vector_store_ids": [store]}],
        temperature=0,
        max_output_tokens=4,
        store=False,
    )
    assert answer.output[0].type == "file_search_call"
    assert answer.usage.input_tokens > 40  # without passages about 25
