"""From a request to a turn, and from a turn to response objects and events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.events import Event, TurnFinished, Usage
from agents.function_tool import FunctionTool
from agents.message import FileSearchCall, FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from agents.payload import to_payload
from agents.turn import FileSearch, Turn
from retrieval.filter import Comparison
from tests.compliance import specification
from tests.worker.reader import Reader, check_response
from tests.worker.turns import CITATION, PASSAGE, SOURCE, frame, told
from worker.runs.choice import merged
from worker.wire.events import WireEvent
from worker.wire.items import CompactionTrigger, ItemReference
from worker.wire.options import SOURCES, TRACE
from worker.wire.response import Dialect, EventEncoder, ResponseFrame, public_item
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import parse

ANSWER = Message("assistant", "The port is 8080 [1].", (CITATION,))
SEARCH = FileSearchCall(("port?",), (SOURCE,))
SINCE_2024: dict[str, Any] = {"type": "gte", "key": "year", "value": 2024}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def turn_of(**body: Any) -> Turn:
    request = parse(ResponseRequest, orjson.dumps(body))
    return request.turn(
        uuid4(),
        tuple(entry.item() for entry in request.input if not isinstance(entry, ItemReference | CompactionTrigger)),
        (),
    )


def narrated(frame: ResponseFrame, events: list[Event]) -> list[WireEvent]:
    narrator = EventEncoder(frame)
    told = [wire for event in events for wire in narrator.events_of(event)]
    finished = events[-1]
    assert isinstance(finished, TurnFinished)
    output = [public_item(item, frame.request.with_results, frame.dialect) for item in finished.output]
    return told + narrator.trace({"id": "t"}) + narrator.conclude(frame.finished(finished, output))


def test_a_string_is_one_message_of_the_user() -> None:
    (item,) = turn_of(input="hello").input
    assert isinstance(item, Message)
    assert (item.role, item.text) == ("user", "hello")


def test_items_that_were_put_out_can_be_put_in_again_and_get_ids_of_their_own() -> None:
    finished = told(SEARCH, FunctionCall("call_1", "f", "{}"), FunctionCallOutput("call_1", "3"), ANSWER)[-1]
    assert isinstance(finished, TurnFinished)
    made = frame(include=["file_search_call.results"])
    reader = Reader.read(narrated(made, told(*finished.output)))
    assert reader.final is not None
    again = turn_of(input=[*reader.final["output"], {"role": "user", "content": "and?"}]).input
    search, call, result, answer, question = again
    assert isinstance(search, FileSearchCall) and search.queries == ("port?",)
    assert isinstance(call, FunctionCall) and (call.call_id, call.name, call.arguments) == ("call_1", "f", "{}")
    assert isinstance(result, FunctionCallOutput) and result.output == "3"
    assert isinstance(answer, Message) and answer.text == ANSWER.text
    assert isinstance(question, Message) and question.role == "user"
    assert not {item.id for item in again} & {item.id for item in finished.output}


def test_tools_of_all_kinds_reach_the_turn() -> None:
    turn = turn_of(
        input="x",
        tools=[
            WEATHER,
            {"type": "firsttoken:calculator"},
            {
                "type": "file_search",
                "vector_store_ids": ["docs"],
                "ranking_options": {"score_threshold": 0.3},
                "filters": SINCE_2024,
            },
        ],
        tool_choice={"type": "function", "name": "get_weather"},
        parallel_tool_calls=False,
        max_tool_calls=2,
        max_output_tokens=50,
    )
    assert turn.functions == (FunctionTool("get_weather", "Weather", WEATHER["parameters"]),)
    assert turn.server_tools == ("calculator",)
    assert turn.file_search == FileSearch(("docs",), 5, 0.3, Comparison(**SINCE_2024))
    assert (turn.tool_choice, turn.parallel_tool_calls) == ("get_weather", False)
    assert (turn.caps.calls, turn.caps.tokens, turn.sampling.max_tokens) == (2, 50, 50)


def test_allowed_tools_limit_the_turn_while_the_model_is_shown_all() -> None:
    tools = [WEATHER, {"type": "firsttoken:calculator"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "firsttoken:calculator"}]}
    turn = turn_of(input="x", tools=tools, tool_choice=choice)
    assert ([tool.name for tool in turn.functions], turn.server_tools) == (["get_weather"], ("calculator",))
    assert (turn.allowed_tools, turn.tool_choice) == (frozenset({"calculator"}), "required")
    shown = frame(tools=tools, tool_choice=choice).started()
    assert [tool["type"] for tool in shown["tools"]] == ["function", "firsttoken:calculator"]
    assert shown["tool_choice"] == choice


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_plain_tool_choice_is_passed_on_and_shown_as_it_came(choice: str) -> None:
    assert turn_of(input="x", tool_choice=choice).tool_choice == choice
    assert frame(tool_choice=choice).started()["tool_choice"] == choice


def test_every_snapshot_has_every_key() -> None:
    made = frame()
    check_response(made.started())
    for status in ("completed", "incomplete", "failed", "cancelled"):
        check_response(made.finished(TurnFinished(status, (), Usage(1, 0, 1)), []))


def test_a_cut_answer_says_why() -> None:
    response = frame().finished(TurnFinished("incomplete", (), Usage(1, 0, 1), "key.seconds"), [])
    assert response["incomplete_details"] == {"reason": "max_output_tokens", "firsttoken:cut": "key.seconds"}
    assert response["error"] is None


def test_a_failed_answer_says_what_happened() -> None:
    finished = TurnFinished("failed", (), Usage(1, 0, 1), error_code="server_error", error_message="no more memory")
    assert frame().finished(finished, [])["error"] == {"code": "server_error", "message": "no more memory"}


def test_usage_counts_what_was_read_from_the_cache() -> None:
    usage = frame().finished(TurnFinished("completed", (), Usage(10, 4, 5)), [])["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert usage["total_tokens"] == 15


def test_a_search_is_told_step_by_step_and_its_sources_come_before_the_text() -> None:
    reader = Reader.read(narrated(frame(include=[SOURCES, TRACE]), told(SEARCH, ANSWER)))
    assert reader.types[2:9] == [
        "response.output_item.added",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.file_search_call.completed",
        "response.output_item.done",
        "firsttoken:sources",
        "response.output_item.added",
    ]
    assert reader.types[-2:] == ["firsttoken:trace", "response.completed"]


def test_events_of_our_own_are_told_only_to_those_who_ask_for_them() -> None:
    reader = Reader.read(narrated(frame(), told(SEARCH, ANSWER)))
    assert [kind for kind in reader.types if not kind.startswith("response.")] == []


def test_the_other_dialect_has_its_own_name_for_thoughts_and_tells_an_error_before_the_end() -> None:
    made = replace(frame(), dialect=Dialect.OPEN_RESPONSES)
    failed = TurnFinished("failed", (), Usage(), error_code="server_error", error_message="no more memory")
    events = narrated(made, [*told(Reasoning("Hm."), ANSWER)[:-1], failed])
    kinds = [event["type"] for event in events]
    assert "response.reasoning.delta" in kinds and "response.reasoning.done" in kinds
    assert not [kind for kind in kinds if kind.startswith("response.reasoning_text")]
    assert kinds[-2:] == ["error", "response.failed"]
    assert events[-2]["error"]["message"] == "no more memory"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_sources_have_the_numbers_under_which_the_answer_cites_them() -> None:
    made = frame(include=[SOURCES])
    (sources,) = [e for e in narrated(made, told(SEARCH, ANSWER)) if e["type"] == "firsttoken:sources"]
    (source,) = sources["passages"]
    assert (source["number"], source["file_id"], source["start_char"]) == (1, PASSAGE.file_id, PASSAGE.start_char)


def test_a_citation_leads_to_the_exact_span_of_its_source() -> None:
    (annotation,) = Reader.read(narrated(frame(), told(ANSWER))).annotations[0]
    assert (annotation["type"], annotation["file_id"]) == ("file_citation", "file_1")
    assert annotation["url"] == "/v1/files/file_1/content#char=10,27"
    assert ANSWER.text[annotation["start_index"] : annotation["end_index"]] == "[1]"
    assert (annotation["firsttoken_start_char"], annotation["firsttoken_end_char"]) == (10, 27)


def test_the_other_dialect_knows_citations_by_their_url_alone() -> None:
    made = replace(frame(), dialect=Dialect.OPEN_RESPONSES)
    finished = told(ANSWER)[-1]
    assert isinstance(finished, TurnFinished)
    whole = made.finished(finished, [public_item(item, dialect=made.dialect) for item in finished.output])
    specification.made(whole)
    (annotation,) = Reader.read(narrated(made, told(ANSWER))).annotations[0]
    assert annotation["type"] == whole["output"][0]["content"][0]["annotations"][0]["type"] == "url_citation"


def test_results_of_a_search_are_shown_only_when_asked_for() -> None:
    assert Reader.read(narrated(frame(), told(SEARCH))).items[0]["results"] is None
    asked = frame(include=["file_search_call.results"])
    assert Reader.read(narrated(asked, told(SEARCH))).items[0]["results"] == to_payload(SEARCH)["results"]


def test_a_call_that_could_not_be_read_is_incomplete_to_callers() -> None:
    """The contract knows no failed calls; its error is told by the output."""
    broken = FunctionCall("call_1", "f", "{", status="failed")
    specification.made(frame().finished(TurnFinished("completed", (broken,), Usage()), [public_item(broken)]))
    reader = Reader.read(narrated(frame(), told(broken)))
    assert reader.items[0]["status"] == "incomplete"


def test_an_answer_that_breaks_off_is_remembered_as_far_as_it_was_told() -> None:
    narrator = EventEncoder(frame())
    for event in told(SEARCH, ANSWER)[:6]:
        narrator.events_of(event)
    search, half = narrator.output
    assert search == SEARCH
    assert isinstance(half, Message)
    assert (half.text, half.status) == ("The po", "incomplete")


def test_a_response_that_was_cancelled_just_ends() -> None:
    made = frame()
    assert EventEncoder(made).conclude(made.finished(TurnFinished("cancelled", (), Usage()), [])) == []


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
ITEMS = st.one_of(
    TEXTS.map(lambda text: Message("assistant", text)),
    TEXTS.map(lambda text: FunctionCall("call_1", "f", text)),
    TEXTS.map(lambda text: FunctionCallOutput("call_1", text)),
    st.just(SEARCH),
)


@given(items=st.lists(ITEMS, max_size=5), pieces=st.integers(1, 5), wakes=st.integers(1, 4))
def test_every_turn_is_told_in_lawful_order_however_it_arrives(items: list[Item], pieces: int, wakes: int) -> None:
    """A reader that knows the law accepts the events, and rebuilds what the turn put out from the deltas alone."""
    events = told(*items, pieces=pieces)
    batches = [events[i : i + wakes] for i in range(0, len(events), wakes)]
    reader = Reader.read(narrated(frame(), [event for batch in batches for event in merged(batch)]))
    assert reader.final is not None
    assert len(reader.final["output"]) == len(items)
    for index, item in enumerate(items):
        if isinstance(item, Message):
            assert reader.texts[index] == item.text


def test_thoughts_are_told_with_events_of_their_own_and_can_be_put_in_again() -> None:
    told_events = narrated(frame(), told(Reasoning("Hm, easy."), ANSWER))
    reader = Reader.read(told_events)
    assert reader.types.count("response.reasoning_text.delta") == 3
    assert reader.types.count("response.reasoning_text.done") == 1
    assert reader.final is not None
    thought, *_ = turn_of(input=[*reader.final["output"], {"role": "user", "content": "and?"}]).input
    assert isinstance(thought, Reasoning) and thought.text == "Hm, easy."
