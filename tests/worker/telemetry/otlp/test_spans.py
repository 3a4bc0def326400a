"""A turn under the names of OpenTelemetry's conventions."""

from __future__ import annotations

from uuid import uuid4

from tests.pages.past import answer, with_tool
from worker.telemetry.otlp.conventions import otlp_json, spans_of


def test_the_whole_turn_is_a_server_span_with_the_usage_of_the_model() -> None:
    record = answer(uuid4(), age_s=60)
    root, *parts = spans_of(record.payload())
    assert (root.kind, root.name, root.parent_id) == ("server", f"chat {record.model}", None)
    assert root.end_ns - root.start_ns == round(record.trace.duration_ms * 1e3) * 1000 or root.end_ns > root.start_ns
    assert root.attributes["gen_ai.request.model"] == record.model
    assert root.attributes["gen_ai.usage.output_tokens"] == record.output_tokens
    assert root.attributes["gen_ai.usage.input_tokens"] == record.prompt.total
    assert record.ttft_ms is not None
    assert root.attributes["gen_ai.response.time_to_first_chunk"] == record.ttft_ms / 1e3
    assert [part.name for part in parts] == [span.name for span in record.trace.spans]
    assert {part.parent_id for part in parts} == {root.id}
    assert all(root.start_ns <= part.start_ns <= part.end_ns <= root.end_ns + 1000 for part in parts)


def test_a_tool_that_failed_is_one_in_the_words_of_the_conventions() -> None:
    spans = spans_of(with_tool(answer(uuid4(), age_s=60), failed=True).payload())
    [tool] = [span for span in spans if span.attributes.get("gen_ai.operation.name") == "execute_tool"]
    assert (tool.name, tool.attributes["gen_ai.tool.name"]) == ("execute_tool calculator", "calculator")
    assert tool.error == "TimeoutError" == tool.attributes["error.type"]


def test_a_turn_that_was_asked_for_within_a_trace_of_the_caller_hangs_below_its_span() -> None:
    record = answer(uuid4(), age_s=60)
    record.trace.attributes |= {"span_id": "1" * 16, "parent_id": "2" * 16}
    root, part, *_ = spans_of(record.payload())
    assert (root.trace_id, root.id, root.parent_id) == (record.trace.id, "1" * 16, "2" * 16)
    assert part.parent_id == root.id


def test_what_a_person_wrote_does_not_go_out() -> None:
    record = answer(uuid4(), age_s=60)
    record.trace.attributes |= {"firsttoken:rating": "down", "firsttoken:comment": "My own words."}
    root = spans_of(record.payload())[0]
    assert root.attributes["firsttoken.rating"] == "down"
    assert "My own words." not in str(otlp_json(spans_of(record.payload()), "1"))


def test_json_has_numbers_of_64_bits_as_text_and_ids_as_hex_digits() -> None:
    record = answer(uuid4(), age_s=60)
    [resource] = otlp_json(spans_of(record.payload()), "1.2.3")["resourceSpans"]
    assert {"key": "service.version", "value": {"stringValue": "1.2.3"}} in resource["resource"]["attributes"]
    root = resource["scopeSpans"][0]["spans"][0]
    assert (root["traceId"], root["kind"]) == (record.trace.id, 2)
    assert int(root["endTimeUnixNano"]) > int(root["startTimeUnixNano"]) > 1e18
    values = {pair["key"]: pair["value"] for pair in root["attributes"]}
    assert values["gen_ai.usage.output_tokens"] == {"intValue": str(record.output_tokens)}
