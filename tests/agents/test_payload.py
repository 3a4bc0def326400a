from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.function_tool import CallShape
from agents.message import (
    CallResult,
    Citation,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    ToolListing,
)
from agents.payload import decision, from_payload, to_payload
from retrieval.passage import Passage

CITATION = Citation(1, 4, 7, "file_1", "a.md", "A", 10, 20)
RESULT = Passage("", "file_1", "a.md", "A", "Yes.", 10, 20, 0, 0.5, {"year": 2024})
ASKED, ASKED_FOR = CallShape("mcp_approval", "far"), CallShape("mcp_approval")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
results = st.none() | st.builds(CallResult, texts, st.booleans())


def server_call(arguments: str, result: CallResult | None, approved: bool, joined: bool) -> FunctionCall:
    call_id = "mcpr_1" if approved else "mcp_1"
    shape = CallShape("mcp", "far", by_server=True)
    return FunctionCall(call_id, "far__read", arguments, "completed", "mcp_1", shape, result, joined)


def approval_request(arguments: str, again: bool) -> FunctionCall:
    return FunctionCall("mcpr_2" if again else "mcpr_1", "far__read", arguments, "completed", "mcpr_1", ASKED)


def approval(approve: bool, reason: str | None) -> FunctionCallOutput:
    status, output = decision(approve, reason and reason.strip())
    return FunctionCallOutput("mcpr_1", output, status, shape=ASKED_FOR)


items = st.one_of(
    st.builds(server_call, texts, results, st.booleans(), st.booleans()),
    st.builds(approval_request, texts, st.booleans()),
    st.builds(approval, st.booleans(), st.none() | texts),
    st.builds(ToolListing, st.just("far"), st.just(({"name": "read", "input_schema": {}},)), texts),
    st.builds(Message, st.sampled_from(["user", "assistant", "system", "developer"]), texts),
    st.builds(Message, st.just("assistant"), texts, st.lists(st.just(CITATION), max_size=2).map(tuple)),
    st.builds(FunctionCall, texts, texts, texts, st.sampled_from(["completed", "incomplete", "failed"])),
    st.builds(FunctionCallOutput, texts, texts),
    st.builds(FileSearchCall, st.lists(texts, max_size=2).map(tuple), st.just((RESULT,))),
)


@given(items)
def test_every_item_comes_back_from_json_as_it_was(item: Item) -> None:
    assert from_payload(orjson.loads(orjson.dumps(to_payload(item)))) == item


def test_an_answer_has_the_shape_of_the_public_contract() -> None:
    payload = to_payload(Message("assistant", "Yes [1].", (CITATION,), id="msg_1"))
    (note,) = payload["content"][0].pop("annotations")
    assert payload == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Yes [1].", "logprobs": []}],
        "status": "completed",
    }
    assert (note["type"], note["file_id"], note["filename"], note["index"]) == ("file_citation", "file_1", "a.md", 7)
    assert note["url"] == "/v1/files/file_1/content#char=10,20"
    assert (note["title"], note["start_index"], note["end_index"]) == ("A", 4, 7)


def test_a_search_has_the_shape_of_the_public_contract() -> None:
    payload = to_payload(FileSearchCall(("why?",), (RESULT,), id="fs_1"))
    assert orjson.dumps(payload) == (
        b'{"id":"fs_1","type":"file_search_call","queries":["why?"],"results":[{"file_id":"file_1","filename":"a.md",'
        b'"score":0.5,"text":"Yes.","attributes":{"year":2024},"firsttoken_title":"A","firsttoken_start_char":10,'
        b'"firsttoken_end_char":20}],"status":"completed"}'
    )


def test_a_search_that_was_stored_without_places_is_read() -> None:
    result = {"file_id": "file_1", "filename": "a.md", "score": 0.5, "text": "Yes.", "attributes": {}}
    stored = {**to_payload(FileSearchCall(("why?",))), "results": [result]}
    item = from_payload(stored)
    assert isinstance(item, FileSearchCall)
    assert item.results == (Passage("", "file_1", "a.md", "", "Yes.", 0, 0, 0, 0.5),)


def test_a_question_has_input_text() -> None:
    assert to_payload(Message("user", "Hi"))["content"] == [{"type": "input_text", "text": "Hi"}]


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"type": "reasoning", "id": "r", "status": "completed", "content": []},
        {"type": "message", "id": "m", "status": "completed", "role": "user"},
        {"type": "message", "id": "m", "status": "completed", "role": "user", "content": "Hi"},
        {"type": "message", "id": "m", "status": "completed", "role": "user", "content": []},
        {"type": "function_call_output", "id": "o", "status": "completed", "output": "x"},
    ],
)
def test_what_is_no_item_is_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"item|unpack"):
        from_payload(payload)
