"""Every dialect, on answers as its models write them: cut anywhere, broken anywhere."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.function_tool import function_schema
from agents.parser.dialect import Dialect, Format, choose
from agents.parser.markup import (
    BODY_BYTES_MAX,
    CallArguments,
    CallBroken,
    CallFinished,
    CallStarted,
    ParserEvent,
    Text,
    Thought,
    ThoughtMarks,
    joined,
)
from inference.message_fitting import Capabilities
from inference.tokenizer import significant_tokens

PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}}
CODES = {
    "code": {"anyOf": [{"$ref": "#/$defs/Code"}, {"type": "null"}]},
    "codes": {"type": "array", "items": {"type": "object", "properties": {"code": {"$ref": "#/$defs/Code"}}}},
    "list": {"type": "array", "items": {"enum": ["1", "2"]}},
}
SCHEMAS = [
    function_schema("weather", "Weather", {"type": "object", "properties": PROPERTIES}),
    function_schema("find", "Find", {"properties": CODES, "$defs": {"Code": {"type": "string"}}}),
]

HERMES = Dialect(Format.HERMES, ThoughtMarks("<think>", "</think>"))
LLAMA = Dialect(Format.LLAMA)
MISTRAL = Dialect(Format.MISTRAL, ThoughtMarks("[THINK]", "[/THINK]"))
CODER = Dialect(Format.QWEN_CODER, ThoughtMarks("<think>", "</think>"))
GEMMA = Dialect(Format.GEMMA, ThoughtMarks("<|channel>", "<channel|>"))
FUNCTION_GEMMA = Dialect(Format.FUNCTION_GEMMA)
HARMONY = Dialect(Format.HARMONY)


class Said(NamedTuple):
    """What an answer says, whatever its markup."""

    text: str = ""
    thought: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    broken: int = 0


TALLINN = ("weather", {"city": 'The "old" {Tallinn}', "days": 3})
PARIS = ("weather", {"city": "Paris"})
J1, J2 = (json.dumps(arguments) for _, arguments in (TALLINN, PARIS))

ANSWERS: dict[str, tuple[Dialect, str, Said]] = {
    "hermes": (
        HERMES,
        f'<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{{"name": "weather", "arguments": {J1}}}\n</tool_call>',
        Said("I look.", "Hm.", (TALLINN,)),
    ),
    "hermes thinks of calls": (
        HERMES,
        '<think>I could <tool_call>{"name": "weather"}</tool_call></think>No.',
        Said("No.", 'I could  {"name": "weather"}', ()),
    ),
    "llama": (LLAMA, f'{{"name": "weather", "parameters": {J1}}}', Said(calls=(TALLINN,))),
    "llama with its tag": (LLAMA, f'<|python_tag|>{{"name": "weather", "parameters": {J1}}}', Said(calls=(TALLINN,))),
    "llama twice": (
        LLAMA,
        f'{{"name": "weather", "parameters": {J1}}}; {{"type": "function", "name": "weather", "parameters": {J2}}}',
        Said(calls=(TALLINN, PARIS)),
    ),
    "llama answers in JSON": (LLAMA, '{"name": "Anna", "age": 3}', Said('{"name": "Anna", "age": 3}')),
    "llama answers in broken JSON": (LLAMA, '{"name": {{ "x"', Said('{"name": {{ "x"')),
    "llama quotes a call": (LLAMA, 'Say {"name": "f", "parameters": {}}', Said('Say {"name": "f", "parameters": {}}')),
    "mistral": (
        MISTRAL,
        f'[THINK]Hm.[/THINK]I look.[TOOL_CALLS] [{{"name": "weather", "arguments": {J1}, "id": "abcdefghi"}}, '
        f'{{"name": "weather", "arguments": {J2}}}]',
        Said("I look.", "Hm.", (TALLINN, PARIS)),
    ),
    "mistral since 2025": (
        MISTRAL,
        f"[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{J1}[TOOL_CALLS]weather{J2}",
        Said(calls=(TALLINN, PARIS)),
    ),
    "mistral with brackets": (MISTRAL, "a[0] = [1, [2]]", Said("a[0] = [1, [2]]")),
    "qwen coder": (
        CODER,
        "<think>Hm.</think>\nI look.\n<tool_call>\n<function=weather>\n<parameter=city>\n"
        'The "old" {Tallinn}\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        Said("I look.", "Hm.", (TALLINN, PARIS)),
    ),
    "qwen coder, types": (
        CODER,
        "<function=weather><parameter=city>12</parameter><parameter=days>True</parameter>"
        "<parameter=tags>[1, <b>]</parameter></function>",
        Said(calls=(("weather", {"city": "12", "days": True, "tags": "[1, <b>]"}),)),
    ),
    "qwen coder, declared types": (
        CODER,
        "<function=find><parameter=code>77812</parameter><parameter=codes>[{}]</parameter></function>"
        "<function=find><parameter=code>null</parameter></function>",
        Said(calls=(("find", {"code": "77812", "codes": [{}]}), ("find", {"code": None}))),
    ),
    "qwen coder forgets to close": (
        CODER,
        "<tool_call><function=weather><parameter=city>Paris</tool_call>",
        Said(calls=(PARIS,)),
    ),
    "gemma": (
        GEMMA,
        '<|channel>thought\nHm.<channel|>I look.<|tool_call>call:weather{city:<|"|>The "old" {Tallinn}<|"|>,days:3}'
        '<tool_call|><|tool_call>call:weather{city:<|"|>Paris<|"|>}<tool_call|>',
        Said("I look.", "Hm.", (TALLINN, PARIS)),
    ),
    "gemma nests": (
        GEMMA,
        '<|tool_call>call:f{a:[1,{<|"|>b<|"|>:null}],c:{d:true},e:bare}<tool_call|>',
        Said(calls=(("f", {"a": [1, {"b": None}], "c": {"d": True}, "e": "bare"}),)),
    ),
    "gemma, declared types": (
        GEMMA,
        '<|tool_call>call:find{code:77812,codes:[{code:1,other:2},{code:<|"|>3<|"|>}],list:[1,2],other:4}<tool_call|>',
        Said(
            calls=(
                (
                    "find",
                    {
                        "code": "77812",
                        "codes": [{"code": "1", "other": 2}, {"code": "3"}],
                        "list": ["1", "2"],
                        "other": 4,
                    },
                ),
            )
        ),
    ),
    "function gemma": (
        FUNCTION_GEMMA,
        "<start_function_call>call:weather{city:<escape>Paris<escape>}<end_function_call>",
        Said(calls=(PARIS,)),
    ),
    "harmony": (
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{J1}<|call|>",
        Said("I look.", "Hm.", (TALLINN,)),
    ),
    "harmony, recipient first": (
        HARMONY,
        f" to=functions.weather<|channel|>commentary json<|message|>{J2}",
        Said(calls=(PARIS,)),
    ),
    "harmony answers": (
        HARMONY,
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>42 < 43",
        Said("42 < 43", "Easy."),
    ),
    "harmony without a header": (HARMONY, "Plain answer.", Said("Plain answer.")),
}
MARKS = {
    HERMES: ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"],
    LLAMA: ["<|python_tag|>"],
    MISTRAL: ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"],
    CODER: ["<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", "</think>"],
    GEMMA: ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"],
    FUNCTION_GEMMA: ["<start_function_call>", "<end_function_call>", "<escape>"],
    HARMONY: ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"],
}
WORDS = [
    "weather", "call:", "name", ">", "{", "}", "[", "]", '"', "\\", ",", ":", ";", "\n", " a ", "é😀", "1", "null", "<",
    "<|", "<tool", "analysis", "final", "to=functions.f", "json", J1, '{"name": "f", "arguments": {"x": 1}}',
    '{"name": "f", "parameters": {', "city:", "thought\n",
]  # fmt: skip


@st.composite
def dialects_with_answers(draw: st.DrawFn) -> tuple[Dialect, str]:
    """Honest answers, and marks and words in any order."""
    dialect = draw(st.sampled_from(list(MARKS)))
    honest = [answer for of, answer, _ in ANSWERS.values() if of == dialect]
    pieces = st.lists(st.sampled_from([*MARKS[dialect] * 3, *WORDS]), max_size=14).map("".join)
    return dialect, draw(st.one_of(st.sampled_from(honest), pieces))


def parse(dialect: Dialect, *pieces: str, thinking: bool = False) -> list[ParserEvent]:
    parser = dialect.parser(SCHEMAS, thinking=thinking)
    return joined([*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()])


def said(events: list[ParserEvent]) -> Said:
    text = "".join(event.text for event in events if isinstance(event, Text)).strip()
    thought = "".join(event.text for event in events if isinstance(event, Thought)).strip()
    calls = tuple((event.name, json.loads(event.arguments)) for event in events if isinstance(event, CallFinished))
    return Said(text, thought, calls, sum(isinstance(event, CallBroken) for event in events))


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_says_what_it_says(name: str) -> None:
    dialect, answer, expected = ANSWERS[name]
    assert said(parse(dialect, answer)) == expected


CALLED = f'<tool_call>\n{{"name": "weather", "arguments": {J1}}}\n</tool_call>'
# What a template says of the marks, where the prompt ends, and an answer with reasoning, as the family writes it.
FAMILIES = {
    "Kimi VL": ("{{ c.split('◁/think▷')[1] }}", "", "◁think▷Hm.◁/think▷I look.\n"),
    "Kimi K2": ("<think></think>", "<|im_middle|>", "<think>Hm.</think>I look.\n"),
    "Hunyuan": (
        "<think>\n\n</think>\n <answer> </answer>",
        "<｜hy_Assistant｜>",
        "<think>\nHm.\n</think>\n<answer>\nI look.\n</answer>\n",
    ),
    "Granite 3.2": (
        "after 'Here is my thought process:' and 'Here is my response:'",
        "",
        "Here is my thought process:\nHm.\n\nHere is my response:\nI look.\n",
    ),
    "Granite 3.3": (
        "<think></think> <response></response>",
        "",
        "<think>Hm.</think>\n<response>I look.</response>\n",
    ),
    "EXAONE Deep": ("{{ c.split('</thought>')[-1] }} <thought>\n", "<thought>\n", "Hm.\n</thought>\n\nI look.\n"),
    "Reka Flash": ("</reasoning>", "", "<reasoning>Hm.</reasoning>I look.\n"),
    "LongCat": ("<longcat_think> </longcat_think>", "<longcat_think>\n", "Hm.</longcat_think>I look.\n"),
    "PLaMo 3": (
        "<|plamo:begin_think:plamo|> <|plamo:end_think:plamo|>",
        "",
        "<|plamo:begin_think:plamo|>Hm.<|plamo:end_think:plamo|>I look.\n",
    ),
    "openPangu": ("[unused16] [unused17]", "", "[unused16] Hm. [unused17] I look.\n"),
    "Solar Open 2": ("<|think:start|> <|think:end|>", "<|think:start|>", "Hm.<|think:end|>I look.\n"),
    "Solar Open": (
        "<|begin|>assistant <|think|> <|end|> <|content|>",
        "<|begin|>assistant",
        "<|think|>Hm.<|end|><|begin|>assistant<|content|>I look.\n",
    ),
    "Solar Open, at low effort": (
        "<|begin|>assistant <|think|> <|end|> <|content|>",
        "<|think|><|end|><|begin|>assistant",
        "<|content|>I look.\n",
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_reasoning_answers_and_calls_of_a_family_are_told_apart(family: str) -> None:
    template, prompt_end, answer = FAMILIES[family]
    dialect = choose(template, Capabilities(tools=False))
    marks = (*(dialect.thoughts or ()), *dialect.around)
    assert significant_tokens(template).issuperset(marks)
    answer += CALLED
    expected = Said("I look.", "Hm." if "Hm." in answer else "", (TALLINN,))
    thinking = dialect.opens_thought(prompt_end)
    whole = parse(dialect, answer, thinking=thinking)
    assert said(whole) == expected
    assert parse(dialect, *answer, thinking=thinking) == whole
    for cut in range(len(answer)):
        part = said(parse(dialect, answer[:cut], thinking=thinking))
        assert not any(mark in part.text + part.thought for mark in marks)


def test_a_mark_that_ends_any_message_does_not_tell_of_reasoning() -> None:
    assert choose("<|user|>...<|end|><|assistant|>", Capabilities(tools=False)).thoughts is None


@pytest.mark.parametrize("dialect", MARKS, ids=lambda each: each.format)
def test_a_mark_that_comes_alone_takes_no_answer_with_it(dialect: Dialect) -> None:
    """What follows it is text, reasoning, or a call that is reported as broken."""
    for mark in MARKS[dialect]:
        for said_after in ("The answer is 42.", f"{'Well, ' * 200} 42."):
            part = said(parse(dialect, f"{mark}thought\n{said_after}"))
            assert "42" in part.text + part.thought or part.broken == 1, mark


@pytest.mark.parametrize("mark", [mark for mark in MARKS[HARMONY] if mark != "<|message|>"])
def test_an_answer_without_a_header_is_shown_whatever_mark_ends_it(mark: str) -> None:
    assert said(parse(HARMONY, f"The answer is 42.{mark}")).text == "The answer is 42."


@pytest.mark.parametrize("name", ANSWERS)
def test_it_says_the_same_when_cut_at_any_position(name: str) -> None:
    dialect, answer, _ = ANSWERS[name]
    whole = parse(dialect, answer)
    for cut in range(len(answer) + 1):
        assert parse(dialect, answer[:cut], answer[cut:]) == whole
    assert parse(dialect, *answer) == whole


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_ends_anywhere_shows_no_markup_and_runs_no_half_call(name: str) -> None:
    dialect, answer, expected = ANSWERS[name]
    for cut in range(len(answer)):
        part = said(parse(dialect, answer[:cut]))
        assert not any(mark in part.text for mark in MARKS[dialect])
        assert part.calls == expected.calls[: len(part.calls)]


@given(dialects_with_answers(), st.data())
def test_any_cutting_gives_the_same_events(given_answer: tuple[Dialect, str], data: st.DataObject) -> None:
    dialect, answer = given_answer
    cuts = data.draw(st.lists(st.integers(0, len(answer)), max_size=8).map(sorted))
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert parse(dialect, *pieces) == parse(dialect, answer) == parse(dialect, *answer)


@given(dialects_with_answers(), st.data())
def test_text_that_passes_need_not_be_fed(given_answer: tuple[Dialect, str], data: st.DataObject) -> None:
    dialect, answer = given_answer
    cuts = data.draw(st.lists(st.integers(0, len(answer)), max_size=8).map(sorted))
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    parser = dialect.parser(SCHEMAS)
    events = [event for each in pieces for event in ([Text(each)] if parser.passes(each) else parser.feed(each))]
    told = [event for event in [*events, *parser.finish()] if event != Text("")]
    assert joined(told) == parse(dialect, answer)


@given(dialects_with_answers())
def test_no_markup_reaches_the_text(given_answer: tuple[Dialect, str]) -> None:
    dialect, answer = given_answer
    for event in parse(dialect, answer):
        assert not isinstance(event, Text | Thought) or not any(mark in event.text for mark in MARKS[dialect])


@given(dialects_with_answers())
def test_every_call_ends_once_and_its_pieces_are_its_arguments(given_answer: tuple[Dialect, str]) -> None:
    pieces: dict[int, str] = {}
    ended = []
    for event in parse(*given_answer):
        match event:
            case CallStarted(index, _):
                assert index not in pieces
                pieces[index] = ""
            case CallArguments(index, text):
                pieces[index] += text
            case CallFinished(index, _, arguments):
                assert pieces[index] == arguments
                assert isinstance(json.loads(arguments), dict)
                ended.append(index)
            case CallBroken(index):
                ended.append(index)
    assert ended == list(range(len(ended)))
    assert set(pieces) <= set(ended)


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        (LLAMA, '{"name": "f", "parameters": {"x": }}'),
        (LLAMA, "<|python_tag|>print(1)"),
        (MISTRAL, "[TOOL_CALLS]f[ARGS][1]"),
        (MISTRAL, "[TOOL_CALLS]" + "f" * 300 + "[ARGS]{}"),
        (MISTRAL, "[TOOL_CALLS]weather"),
        (CODER, "<tool_call><function=weather></tool_call><function="),
        (CODER, "<function=weather><parameter=city>a</parameter><parameter=city>b</parameter></function>"),
        (CODER, "<function=weather><parameter=city>" + "a" * (BODY_BYTES_MAX + 1)),
        (GEMMA, "<|tool_call>call:f{a:<tool_call|>"),
        (GEMMA, "<|tool_call>call:f{a b:c:d}<tool_call|>"),
        (GEMMA, '<|tool_call>call:f{a:<|"|>' + "a" * (BODY_BYTES_MAX + 1)),
        (GEMMA, "<|tool_call>call:f{a:" + "a" * 5_000),
        (GEMMA, "<|tool_call>" + "a" * 5_000),
        (HARMONY, "<|channel|>commentary to=functions.f<|message|>5"),
        (HARMONY, '<|channel|>commentary to=functions.f<|message|>{"x": 1<|call|>'),
    ],
)
def test_a_malformed_call_is_broken_and_none_of_it_is_shown(dialect: Dialect, answer: str) -> None:
    part = said(parse(dialect, answer))
    assert part.broken == 1
    assert part.text == ""


MEGABYTE = "é <b> {" * (2**20 // 8)
LONG = json.dumps({"city": MEGABYTE}, ensure_ascii=False)
LONG_CALLS = [
    (HERMES, f'<tool_call>{{"name": "weather", "arguments": {LONG}}}</tool_call>'),
    (LLAMA, f'{{"name": "weather", "parameters": {LONG}}}'),
    (MISTRAL, f'[TOOL_CALLS][{{"name": "weather", "arguments": {LONG}}}]'),
    (MISTRAL, f"[TOOL_CALLS]weather[ARGS]{LONG}"),
    (CODER, f"<tool_call><function=weather><parameter=city>{MEGABYTE}</parameter></function></tool_call>"),
    (GEMMA, f'<|tool_call>call:weather{{city:<|"|>{MEGABYTE}<|"|>}}<tool_call|>'),
    (HARMONY, f"<|channel|>commentary to=functions.weather<|message|>{LONG}<|call|>"),
]


@pytest.mark.parametrize(("dialect", "answer"), LONG_CALLS)
def test_a_megabyte_of_arguments_is_read_whole_or_in_pieces(dialect: Dialect, answer: str) -> None:
    """In time linear in the text: otherwise this takes minutes."""
    expected = Said(calls=(("weather", {"city": MEGABYTE}),))
    assert said(parse(dialect, answer)) == expected
    assert said(parse(dialect, *(answer[at : at + 1000] for at in range(0, len(answer), 1000)))) == expected


def test_long_arguments_stream() -> None:
    parser = HERMES.parser()
    parser.feed('<tool_call>{"name": "weather", "arguments": {"city": "')
    assert parser.feed(MEGABYTE) == [CallArguments(0, MEGABYTE)]


@pytest.mark.parametrize("surplus", [0, 1])
def test_the_limit_of_a_call_counts_bytes(surplus: int) -> None:
    head, tail = '{"name": "weather", "arguments": {"city": "', '"}}'
    city = "é" * ((BODY_BYTES_MAX - len(head) - len(tail)) // 2 + surplus)
    found = said(parse(HERMES, f"<tool_call>{head}{city}{tail}</tool_call>Done."))
    assert (len(found.calls), found.broken, found.text) == (1 - surplus, surplus, "Done.")


def test_names_have_up_to_128_characters() -> None:
    name = "mcp__a_server__" + "f" * 113
    for dialect, answer, _ in ANSWERS.values():
        if "call" not in answer or dialect is LLAMA:
            found = [
                event for event in parse(dialect, answer.replace("weather", name)) if isinstance(event, CallStarted)
            ]
            assert {event.name for event in found} <= {name, "find", "f"}, dialect
            assert not any(isinstance(event, CallBroken) for event in parse(dialect, answer.replace("weather", name)))


@pytest.mark.parametrize("name", [name for name, (_, _, expected) in ANSWERS.items() if expected.calls])
def test_nothing_of_a_forced_call_that_was_cut_off_is_text(name: str) -> None:
    dialect, answer, expected = ANSWERS[name]
    begin = answer.find(expected.text) + len(expected.text) if expected.text else 0
    parser = dialect.parser(SCHEMAS)
    before = parser.feed(answer[:begin])
    for cut in range(begin, len(answer)):
        parser = dialect.parser(SCHEMAS)
        events = joined([*parser.feed(answer[:cut]), *parser.finish(in_call=True)])
        assert said(events).text == said(before).text, answer[:cut]


def test_a_thought_that_the_prompt_opened_ends_at_its_mark() -> None:
    assert said(parse(HERMES, "Hm.</think>Yes.", thinking=True)) == Said("Yes.", "Hm.")
    assert HERMES.opens_thought("<|im_start|>assistant\n<think>\n")
    assert not HERMES.opens_thought("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("template", "format", "thinks"),
    [
        ("plain chatml", Format.HERMES, False),
        ("<tool_call>\n{...}</tool_call> ... </think>", Format.HERMES, True),
        ("<tool_call>\n<function=example>\n</think>", Format.QWEN_CODER, True),
        ("<|start_header_id|>...<|python_tag|>", Format.LLAMA, False),
        ("[INST] [TOOL_CALLS] [THINK] [/THINK]", Format.MISTRAL, True),
        ("<|turn>...<|tool_call>call: ... '<channel|>'", Format.GEMMA, True),
        ("<start_of_turn> <start_function_call>", Format.FUNCTION_GEMMA, False),
        ("<|start|>...<|channel|>analysis<|message|> </think>", Format.HARMONY, False),
    ],
)
def test_the_template_tells_the_dialect(template: str, format: Format, thinks: bool) -> None:
    dialect = choose(template)
    assert (dialect.format, dialect.thoughts is not None) == (format, thinks)
