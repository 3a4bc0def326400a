from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.message import Citation, FileSearchCall, FunctionCall, FunctionCallOutput, Item, Message
from agents.payload import from_payload, new_item, to_payload

CITATION = Citation(1, 6, 9, "file_1", "a.md", "A", 10, 20)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
ids = st.text("abc_123", min_size=1, max_size=20)
items = st.one_of(
    st.builds(Message, st.sampled_from(["user", "assistant", "system", "developer"]), texts),
    st.builds(Message, st.just("assistant"), texts, st.lists(st.just(CITATION), max_size=2).map(tuple)),
    st.builds(FunctionCall, ids, ids, texts, st.sampled_from(["completed", "incomplete", "failed"])),
    st.builds(FunctionCallOutput, ids, texts),
    st.builds(FileSearchCall, st.lists(texts, max_size=2).map(tuple), st.just(({"file_id": "f", "score": 0.5},))),
)


@given(items)
def test_every_item_comes_back_as_it_was(item: Item) -> None:
    assert from_payload(to_payload(item)) == item


def test_an_answer_has_the_shape_of_the_public_contract() -> None:
    payload = to_payload(Message("assistant", "Yes [1].", (CITATION,), id="msg_1"))
    assert payload["content"][0]["logprobs"] == []
    (note,) = payload["content"][0].pop("annotations")
    assert payload == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Yes [1].", "logprobs": []}],
        "status": "completed",
    }
    assert note["type"] == "url_citation"
    assert note["url"] == "/v1/files/file_1/content#char=10,20"
    assert (note["title"], note["start_index"], note["end_index"]) == ("A", 6, 9)


def test_a_question_has_input_text() -> None:
    assert to_payload(Message("user", "Hi"))["content"] == [{"type": "input_text", "text": "Hi"}]


@pytest.mark.parametrize(
    "content",
    ["Hi", [{"type": "input_text", "text": "Hi"}], [{"type": "text", "text": "Hi"}]],
)
def test_short_forms_of_a_message_are_understood(content: object) -> None:
    item = from_payload({"role": "user", "content": content})
    assert isinstance(item, Message)
    assert (item.role, item.text, item.status) == ("user", "Hi", "completed")


def test_parts_are_joined_and_their_citations_move_along() -> None:
    part = to_payload(Message("assistant", "Yes [1].", (CITATION,)))["content"][0]
    item = from_payload({"role": "assistant", "content": [part, part]})
    assert isinstance(item, Message)
    assert [item.text[c.start_index : c.end_index] for c in item.citations] == [item.text[6:9], item.text[15:18]]


def test_annotations_of_other_servers_are_dropped() -> None:
    part = {"type": "output_text", "text": "x", "annotations": [{"type": "file_citation", "file_id": "f"}, 5]}
    item = from_payload({"role": "assistant", "content": [part]})
    assert isinstance(item, Message)
    assert item.citations == ()


def test_an_output_may_be_a_list_of_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    item = from_payload({"type": "function_call_output", "call_id": "c", "output": parts})
    assert isinstance(item, FunctionCallOutput)
    assert item.output == "a\nb"


def test_an_item_from_outside_gets_an_id_of_our_own() -> None:
    item = new_item({"role": "user", "content": "Hi", "id": "msg_theirs", "status": "in_progress"})
    assert item.id != "msg_theirs"
    assert item.status == "completed"


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "type: must be one of"),
        ({"type": "reasoning"}, "type: must be one of"),
        ({"type": ["message"]}, "type: must be one of"),
        ({"role": "robot", "content": ""}, "role: must be one of"),
        ({"role": ["user"], "content": ""}, "role: must be one of"),
        ({"role": "user"}, "content: must be a string or a list"),
        ({"role": "user", "content": [{"type": "input_image"}]}, r"content\[0\].type: 'input_image' is not supported"),
        ({"role": "user", "content": [{"type": ["text"], "text": ""}]}, r"content\[0\].type: .* is not supported"),
        ({"role": "user", "content": ["Hi"]}, r"content\[0\]: must be an object"),
        ({"role": "user", "content": [{"type": "input_text"}]}, r"content\[0\].text: must be a string"),
        ({"role": "user", "content": "a\0b"}, "content: must not contain the NUL"),
        ({"role": "user", "content": "a\ud800b"}, "content: must be valid Unicode"),
        ({"role": "user", "content": "", "id": ""}, "id: must have 1 to"),
        ({"role": "user", "content": "", "id": 5}, "id: must be a string"),
        ({"role": "user", "content": "", "status": "odd"}, "status: must be one of"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "name: must be a string"),
        ({"type": "function_call", "call_id": "c" * 200, "name": "f", "arguments": "{}"}, "call_id: must have 1 to"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}, "arguments: must be a string"),
        ({"type": "function_call_output", "call_id": "c", "output": None}, "output: must be a string or a list"),
        ({"type": "file_search_call", "queries": "q"}, "queries: must be a list"),
        ({"type": "file_search_call", "results": [1]}, "results: must be a list"),
    ],
)
def test_what_is_wrong_is_named(payload: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_payload(payload)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
FIELDS = ["type", "role", "content", "text", "call_id", "name", "arguments", "output", "id", "status", "annotations"]
WORDS = ["message", "function_call", "function_call_output", "file_search_call", "user", "assistant", "input_text"]


@given(st.dictionaries(st.sampled_from(FIELDS), json_values | st.sampled_from(WORDS), max_size=8))
def test_no_payload_fails_in_any_other_way(payload: dict[str, Any]) -> None:
    try:
        item = from_payload(payload)
    except ValueError:
        return
    assert from_payload(to_payload(item)) == item
