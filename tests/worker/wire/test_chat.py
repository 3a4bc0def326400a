"""Chat completions: messages become items, and what happens becomes chunks."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import orjson
import pytest

from agents.events import Event, TurnFinished, Usage
from agents.message import FunctionCall, FunctionCallOutput, Message, Reasoning
from inference.generation import Predicted
from tests.worker.turns import told
from worker.errors import ApiError
from worker.wire.chat_request import ChatRequest
from worker.wire.completion import ChatCompletion, ChunkEncoder, usage_object, usage_of
from worker.wire.events import DONE
from worker.wire.strict import parse

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def request_of(**body: Any) -> ChatRequest:
    return parse(ChatRequest, orjson.dumps({"messages": [USER], **body}))


def chunks_of(events: list[Event], **body: Any) -> list[dict[str, Any]]:
    completion = ChatCompletion(request_of(**body), "demo-chat")
    (choice,) = completion.choices
    finished = events[-1]
    assert isinstance(finished, TurnFinished)
    pieces = [piece for event in events for piece in choice.events_of(event)] + [choice.conclude(finished)]
    closing = [orjson.loads(frame.removeprefix(b"data: ")) for frame in completion.closing([finished]) if frame != DONE]
    return [*map(completion.chunk, pieces), *closing]


def choice_of(finished: Event, **body: Any) -> dict[str, Any]:
    assert isinstance(finished, TurnFinished)
    (choice,) = ChatCompletion(request_of(**body), "m").choices
    whole: dict[str, Any] = choice.whole(finished)
    return whole


def deltas_of(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def test_a_whole_dialogue_with_tools_becomes_items() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        {"role": "assistant", "content": "Three."},
        {"role": "user", "content": "and?"},
    ]
    system, user, called, result, answer, question = request_of(messages=messages).turn(uuid4()).input
    assert isinstance(system, Message) and system.role == "system"
    assert isinstance(user, Message) and user.text == "a\nb"
    assert isinstance(called, FunctionCall) and (called.call_id, called.name) == ("call_1", "f")
    assert isinstance(result, FunctionCallOutput) and result.output == "3"
    assert isinstance(answer, Message) and answer.role == "assistant"
    assert isinstance(question, Message)


def test_a_refusal_that_comes_back_is_what_the_assistant_said() -> None:
    question = {"role": "user", "content": "x"}
    refused = {"role": "assistant", "content": None, "refusal": "I will not.", "tool_calls": None}
    _, said, _ = request_of(messages=[question, refused, question]).turn(uuid4()).input
    assert isinstance(said, Message) and (said.role, said.text) == ("assistant", "I will not.")


def test_sampling_is_passed_on() -> None:
    turn = request_of(
        max_tokens=7, temperature=0, top_p=0.5, stop="END", seed=-1, logit_bias={"5": -100}, presence_penalty=1
    ).turn(uuid4())
    sampling = turn.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0, 0.5)
    assert (turn.stop, sampling.logit_bias, sampling.presence_penalty) == (("END",), {5: -100}, 1)
    assert sampling.seed is not None and sampling.seed >= 0


@pytest.mark.parametrize(
    "content",
    [
        "x = 1\ny = 2",
        [{"type": "text", "text": "x = 1\n"}, {"type": "text", "text": "y = 2"}],
    ],
)
def test_a_prediction_is_a_text_beside_the_messages(content: Any) -> None:
    turn = request_of(prediction={"type": "content", "content": content}).turn(uuid4())
    assert turn.prediction == "x = 1\ny = 2"
    assert len(turn.input) == 1
    assert request_of(prediction=None).turn(uuid4()).prediction == ""


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("x = 1", "prediction"),
        ({"type": "text", "content": "x"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": None}, "prediction.content"),
        ({"type": "content", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}, "prediction.content[0]"),
    ],
)
def test_a_prediction_that_is_none_is_refused_by_its_name(prediction: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        request_of(prediction=prediction)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_usage_tells_what_was_drafted_of_a_prediction() -> None:
    usage = Usage(10, 0, 8, predicted=Predicted(5, 2))
    details = usage_object(usage + usage)["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (10, 4)


def test_the_role_comes_first_and_the_reason_last() -> None:
    chunks = chunks_of(told(Message("assistant", "Hello there.")))
    deltas = deltas_of(chunks)
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello there."
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_a_call_is_named_first_and_its_arguments_follow_in_fragments() -> None:
    events = told(FunctionCall("call_1", "f", '{"a": 1}'), FunctionCall("call_2", "f", "{}"))
    fragments = [
        delta["tool_calls"][0] for delta in deltas_of(chunks_of(events, tools=[TOOL])) if "tool_calls" in delta
    ]
    first = fragments[0]
    assert first == {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert all(fragment.keys() == {"index", "function"} for fragment in fragments[1:4])
    arguments = ["", ""]
    for fragment in fragments:
        arguments[fragment["index"]] += fragment["function"]["arguments"]
    assert arguments == ['{"a": 1}', "{}"]


def test_calls_that_wait_for_the_caller_end_the_answer() -> None:
    events = told(FunctionCall("call_1", "f", "{}"))
    assert chunks_of(events, tools=[TOOL])[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_of_a_function_that_nobody_gave_is_not_shown() -> None:
    output = FunctionCall("call_1", "g", "{}"), FunctionCallOutput("call_1", "Error"), Message("assistant", "Sorry.")
    events = told(*output)
    assert [delta for delta in deltas_of(chunks_of(events, tools=[TOOL])) if "tool_calls" in delta] == []
    whole = choice_of(events[-1], tools=[TOOL])
    assert "tool_calls" not in whole["message"]
    assert whole["finish_reason"] == "stop"


def test_usage_is_one_more_chunk_without_choices_and_null_before() -> None:
    chunks = chunks_of(told(Message("assistant", "Hi.")), stream_options={"include_usage": True})
    assert {chunk["usage"] is None for chunk in chunks[:-1]} == {True}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert chunks[-1]["usage"]["total_tokens"] == 15
    assert "usage" not in chunks_of(told(Message("assistant", "Hi.")))[-1]


def test_metadata_ask_for_the_same_bytes() -> None:
    assert request_of(metadata={"deterministic": "true"}).turn(uuid4()).sampling.deterministic
    assert not request_of(metadata={"deterministic": "no"}).turn(uuid4()).sampling.deterministic


def test_a_cut_answer_ends_by_length() -> None:
    events = told(Message("assistant", "Hi", status="incomplete"), status="incomplete", cut="server.tokens")
    [last] = chunks_of(events)[-1]["choices"]
    assert (last["finish_reason"], last["firsttoken:cut"]) == ("length", "server.tokens")


def test_a_failure_in_the_middle_is_an_error_that_clients_raise() -> None:
    finished = told(status="failed")[-1]
    assert isinstance(finished, TurnFinished)
    completion = ChatCompletion(request_of(), "m")
    [frame] = ChunkEncoder(completion, *completion.choices).last(finished)
    assert orjson.loads(frame.removeprefix(b"data: "))["error"]["type"] == "server_error"


def test_thoughts_are_told_apart_from_the_answer() -> None:
    events = told(Reasoning("Seven is prime."), Message("assistant", "Yes."))
    deltas = deltas_of(chunks_of(events))
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Seven is prime."
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
    assert choice_of(events[-1])["message"]["reasoning_content"] == "Seven is prime."


def test_texts_and_thoughts_around_a_call_of_this_server_are_as_far_apart_in_chunks_as_in_one_piece() -> None:
    call = FunctionCall("call_1", "g", "{}"), FunctionCallOutput("call_1", "7")
    thoughts = Reasoning("It needs a sum."), Reasoning("That is it.")
    events = told(
        thoughts[0], Message("assistant", "Let me see."), *call, thoughts[1], Message("assistant", "It is 7.")
    )
    finished = events[-1]
    assert isinstance(finished, TurnFinished)
    completion = ChatCompletion(request_of(tools=[TOOL]), "m")
    encoder = ChunkEncoder(completion, *completion.choices)
    frames = [orjson.loads(frame.removeprefix(b"data: ")) for event in events[:-1] for frame in encoder.frames(event)]
    message = choice_of(finished, tools=[TOOL])["message"]
    assert message["content"] == "Let me see.\nIt is 7."
    for name in ("content", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas_of(frames)) == message[name]


def test_choices_have_seeds_of_their_own_and_one_prompt_that_counts_once() -> None:
    request = request_of(n=3, seed=7)
    assert [turn.sampling.seed for turn in request.turns(uuid4())] == [7, 8, 9]
    finished = told(Message("assistant", "Hi."))[-1]
    assert isinstance(finished, TurnFinished)
    one, three = usage_of([finished]), usage_of([finished] * 3)
    assert (three.input_tokens, three.cached_tokens) == (one.input_tokens, one.cached_tokens)
    assert three.output_tokens == 3 * one.output_tokens > 0


def test_a_whole_completion_holds_text_and_open_calls() -> None:
    finished = told(Message("assistant", "Let me see."), FunctionCall("call_1", "f", "{}"))[-1]
    message = choice_of(finished, tools=[TOOL])["message"]
    assert message["content"] == "Let me see."
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize("role", ["usr", "function"])
def test_a_role_that_does_not_exist_is_told_all_that_do(role: str) -> None:
    body = orjson.dumps({"messages": [{"role": role, "content": "hello"}]})
    with pytest.raises(ApiError, match="system, developer, user, assistant and tool") as raised:
        parse(ChatRequest, body)
    assert raised.value.param == "messages[0].role"
