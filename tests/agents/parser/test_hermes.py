from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.parser.dialect import HermesParser
from agents.parser.markup import BODY_BYTES_MAX, CallArguments, CallBroken, CallFinished, CallStarted, ParserEvent, Text

# Pieces from which hostile and honest answers alike are made; hypothesis puts them together in any order.
PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tool",
    "<to",
    "ol_call>",
    "<",
    "\n",
    " text ",
    '{"name": "f", "arguments": {"x": 1}}',
    '{"arguments": {"y": [{}, "}"]}, "name": "g"}',
    '{"name": "h"}',
    '{"name": "f", "arguments": {',
    '"a": "</tool_call>"',
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "null",
    '"name"',
    '"arguments"',
    "é€😀",
]
answers = st.one_of(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.text(max_size=60))


def parse(*pieces: str) -> list[ParserEvent]:
    parser = HermesParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return merged(events + parser.finish())


def merged(events: list[ParserEvent]) -> list[ParserEvent]:
    """Neighbouring pieces joined, so that only the content is compared."""
    result: list[ParserEvent] = []
    for event in events:
        match result[-1] if result else None, event:
            case Text(before), Text(after):
                result[-1] = Text(before + after)
            case CallArguments(i, before), CallArguments(_, after):
                result[-1] = CallArguments(i, before + after)
            case _:
                result.append(event)
    return result


def called(index: int, name: str, arguments: str) -> list[ParserEvent]:
    return [CallStarted(index, name), CallArguments(index, arguments), CallFinished(index, name, arguments)]


def broken(events: list[ParserEvent]) -> list[CallBroken]:
    return [event for event in events if isinstance(event, CallBroken)]


def test_plain_text_passes_through() -> None:
    assert parse("1 < 2 and <b>bold</b>") == [Text("1 < 2 and <b>bold</b>")]


def test_text_before_a_call_is_text() -> None:
    events = parse('Let me see.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>')
    assert events == [Text("Let me see.\n"), *called(0, "f", '{"x": 1}')]


def test_parallel_calls_are_counted() -> None:
    one, two = '{"name": "f", "arguments": {"x": 1}}', '{"name": "g", "arguments": {"y": 2}}'
    events = parse(f"<tool_call>\n{one}\n</tool_call>\n<tool_call>\n{two}\n</tool_call>")
    assert [event for event in events if not isinstance(event, Text)] == [
        *called(0, "f", '{"x": 1}'),
        *called(1, "g", '{"y": 2}'),
    ]


def test_the_arguments_stream_as_they_are_written() -> None:
    parser = HermesParser()
    parser.feed('<tool_call>{"name": "f", "argum')
    assert parser.feed('ents": {"city": "Ta') == [CallArguments(0, '{"city": "Ta')]
    assert parser.feed('llinn"') == [CallArguments(0, 'llinn"')]


def test_arguments_before_the_name_wait_for_it() -> None:
    parser = HermesParser()
    assert parser.feed('<tool_call>{"arguments": {"x": 1}, ') == []
    assert merged(parser.feed('"name": "f"}')) == called(0, "f", '{"x": 1}')


@pytest.mark.parametrize("body", ['{"name": "f"}', '{"name": "f", "arguments": null}'])
def test_a_call_without_arguments_has_empty_ones(body: str) -> None:
    assert parse(f"<tool_call>{body}</tool_call>") == called(0, "f", "{}")


def test_markup_inside_a_string_is_part_of_the_arguments() -> None:
    arguments = json.dumps({"text": 'a </tool_call> "quoted" } <tool_call> \\'})
    assert parse(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>') == called(0, "f", arguments)


def test_names_of_inner_objects_are_not_the_name() -> None:
    arguments = '{"name": "inner", "arguments": {"name": "deeper"}}'
    assert parse(f'<tool_call>{{"arguments": {arguments}, "name": "f"}}</tool_call>') == called(0, "f", arguments)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("f(x)", "begin with a JSON object"),
        ('{"name": "f", "arguments": {"x": 1}', "not complete JSON"),
        ('{"name": "f", "arguments": {"x": }}', "not valid JSON"),
        ('{"name": "f", "arguments": {"x": NaN}}', "not valid JSON"),
        ('{"name": "f", "arguments": {"x": 1, "x": 2}}', "a key occurs twice"),
        ('{"name": "f", "name": "g", "arguments": {}}', "a key occurs twice"),
        ('{"name": "f", "arguments": "{}"}', "must be a JSON object"),
        ('{"name": "f", "arguments": [1]}', "must be a JSON object"),
        ('{"name": 5, "arguments": {}}', "no name"),
        ('{"name": "", "arguments": {}}', "printable characters"),
        ('{"name": "\\ud800", "arguments": {}}', "printable characters"),
        ('{"name": "' + "f" * 129 + '", "arguments": {}}', "printable characters"),
        ('{"arguments": {}}', "no name"),
        ('{"name": "f", "arguments": {"x": ' + "[" * 40, "nested deeper"),
        ('{"name": "f", "arguments": {"x": "' + "a" * BODY_BYTES_MAX, "longer than"),
        ('{"name": "f", "arguments": {"x": "line\nbreak"}}', "not valid JSON"),
    ],
)
def test_a_broken_call_says_why_and_reading_goes_on(body: str, reason: str) -> None:
    events = parse(f"<tool_call>{body}</tool_call>After.")
    assert reason in broken(events)[0].reason
    assert not [event for event in events if isinstance(event, CallFinished)]
    assert events[-1] == Text("After.")


@pytest.mark.parametrize("cut", range(len('<tool_call>{"name": "f", "arguments": {"x": "1"}}')))
def test_a_call_cut_off_anywhere_never_finishes(cut: int) -> None:
    events = parse('<tool_call>{"name": "f", "arguments": {"x": "1"}}'[:cut])
    assert not [event for event in events if isinstance(event, CallFinished)]
    assert len(broken(events)) == (cut >= len("<tool_call>"))


def test_a_tag_cut_off_by_the_end_is_not_shown_but_a_plain_bracket_is() -> None:
    assert parse("Hi <tool_ca") == [Text("Hi ")]
    assert parse("1 <") == [Text("1 <")]


def test_what_follows_the_object_up_to_the_closing_tag_is_dropped() -> None:
    assert parse('<tool_call>{"name": "f"}} junk</tool_call>Done.') == [*called(0, "f", "{}"), Text("Done.")]


def test_a_missing_closing_tag_does_not_hide_the_next_call() -> None:
    events = parse('<tool_call>{"name": "f"}\n<tool_call>{"name": "g"}</tool_call>')
    assert events == [*called(0, "f", "{}"), *called(1, "g", "{}")]


def test_a_result_that_the_model_made_up_is_shown_unless_a_call_precedes_it() -> None:
    made_up = "<tool_response>\n42\n</tool_response>fine."
    assert parse(made_up) == [Text(" \n42\n fine.")]
    assert parse('<tool_call>{"name": "f"}</tool_call>' + made_up) == [*called(0, "f", "{}"), Text(" fine.")]


@given(answers, st.data())
def test_any_cutting_gives_the_same_events(answer: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(answer)), max_size=12).map(sorted))
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert parse(*pieces) == parse(answer) == parse(*answer)


@given(answers)
def test_no_markup_reaches_the_text(answer: str) -> None:
    for event in parse(answer):
        assert not isinstance(event, Text) or not re.search("</?tool_(call|response)>", event.text)


@given(answers)
def test_every_call_ends_once_and_its_pieces_are_its_arguments(answer: str) -> None:
    started: dict[int, str] = {}
    ended: list[int] = []
    pieces: dict[int, str] = {}
    for event in parse(answer):
        match event:
            case CallStarted(index, name):
                started[index] = name
            case CallArguments(index, text):
                assert index in started
                pieces[index] = pieces.get(index, "") + text
            case CallFinished(index, name, arguments):
                assert started[index] == name
                assert pieces[index] == arguments
                assert isinstance(json.loads(arguments), dict)
                ended.append(index)
            case CallBroken(index):
                ended.append(index)
    assert ended == list(range(len(ended)))
    assert set(started) <= set(ended)


objects = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=12),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


@given(objects, st.booleans(), st.sampled_from([None, 2]))
def test_whatever_json_can_say_comes_through(
    arguments: dict[str, object], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    assert parse(f'Hm <tool_call>{{"name": "f", "arguments": {text}}}</tool_call>') == [
        Text("Hm "),
        *called(0, "f", text),
    ]
