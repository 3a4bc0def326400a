"""Calls in the dialects that differ from Hermes, of the model's own accord or forced: held, and read as they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from agents.parser.dialect import Dialect, Format
from agents.parser.markup import CallBroken, CallFinished
from inference.bundled import CHAT_MODEL
from inference.grammar.calls import (
    CallableFunction,
    Forced,
    function_gemma_calls,
    gemma_calls,
    harmony_calls,
    llama_calls,
    mistral_calls,
    qwen_coder_calls,
)
from inference.grammar.constraint import Vocabulary
from inference.grammar.lark import ReasoningMarks
from inference.llama import LlamaModel

MODEL = LlamaModel.load(CHAT_MODEL, weights=False)
# As models of these dialects have them: tokens of their own, which an answer shows.
MARKS = ["<|python_tag|>", "[TOOL_CALLS]", "<|tool_call>", "<start_function_call>", "<|channel|>", "<function="]
PIECES = [*MODEL.pieces(), *(mark.encode() for mark in MARKS)]
VOCABULARY = Vocabulary(PIECES, MODEL.end_tokens())
END = min(MODEL.end_tokens())

WEATHER = CallableFunction(
    "weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
            "places": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
        },
        "required": ["city"],
    },
)
CLOCK = CallableFunction("get-time", {"type": "object", "properties": {}})

Q, E = '<|"|>', "<escape>"
Calls = Callable[[Sequence[CallableFunction], Forced | None], str]
DIALECTS: list[tuple[Format, Calls, list[str], list[str]]] = [
    (
        Format.LLAMA,
        llama_calls,
        ['<|python_tag|>{"name": "weather", "parameters": {"city": "Ulm", "days": 3}}'],
        [
            '<|python_tag|>{"name": "wether", "parameters": {"city": "Ulm"}}',
            '<|python_tag|>{"name": "weather", "parameters": {"days": 3}}',
            '<|python_tag|>{"name": "weather", "parameters": {"city": 3}}',
        ],
    ),
    (
        Format.MISTRAL,
        mistral_calls,
        [
            '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ulm", "unit": "C"}}]',
            '[TOOL_CALLS] [{"name": "get-time", "arguments": {}, "id": "abc123def"}]',
            '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "]"}}, {"name": "get-time", "arguments": {}}]',
            '[TOOL_CALLS]weather[ARGS]{"city": "Ulm"}',
            '[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{"city": "Ulm"}[TOOL_CALLS]get-time[ARGS]{}',
        ],
        [
            '[TOOL_CALLS][{"name": "wether", "arguments": {"city": "Ulm"}}]',
            '[TOOL_CALLS]wether[ARGS]{"city": "Ulm"}',
            '[TOOL_CALLS]weather[ARGS]{"city": "Ulm", "unit": "K"}',
            '[TOOL_CALLS]weather[ARGS]{"city": "Ulm"}[TOOL_CALLS]wether[ARGS]{}',
        ],
    ),
    *(
        (
            format,
            calls,
            [
                f"{begin}call:weather{{city:{q}Ulm, {{a}}{q},days:3}}{end}",
                f"{begin}call:weather{{unit:{q}C{q},places:[{{x:1.5}},{{x:-2}}],city:{q}{q}}}{end}",
                f"{begin}call:get-time{{}}{end}",
            ],
            [
                f"{begin}call:wether{{city:{q}Ulm{q}}}{end}",
                f"{begin}call:weather{{town:{q}Ulm{q}}}{end}",
                f"{begin}call:weather{{city:3}}{end}",
                f"{begin}call:weather{{unit:{q}K{q}}}{end}",
                f"{begin}call:weather{{days:1.5}}{end}",
            ],
        )
        for format, calls, begin, end, q in (
            (Format.GEMMA, gemma_calls, "<|tool_call>", "<tool_call|>", Q),
            (Format.FUNCTION_GEMMA, function_gemma_calls, "<start_function_call>", "<end_function_call>", E),
        )
    ),
    (
        Format.HARMONY,
        harmony_calls,
        [
            '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Ulm"}',
            '<|channel|>commentary to=functions.weather<|message|>{"city": "Ulm", "days": 2}',
            "<|channel|>analysis<|message|>hm {<|end|><|start|>assistant"
            "<|channel|>commentary to=functions.get-time json<|message|>{}",
        ],
        [
            '<|channel|>commentary to=functions.wether <|constrain|>json<|message|>{"city": "Ulm"}',
            '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"days": 2}',
            "<|channel|>commentary to=browser.open<|message|>{}",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
            "<|channel|>commentary to=functions.wether json<|message|>{}",
        ],
    ),
    (
        Format.QWEN_CODER,
        qwen_coder_calls,
        [
            "<function=weather>\n<parameter=city>\nUlm\n</parameter>\n</function>\n</tool_call>",
            "<function=get-time>\n</function>\n<tool_call>\n<function=get-time></tool_call>",
            "<function=weather>\n<parameter=city>See <function=x>.</parameter></function>",
        ],
        [
            "<function=wether>\n<parameter=city>\nUlm\n</parameter>\n</function>",
            "<function=get-time>\n</function>\n<tool_call>\n<function=wether>",
            "<function=get-time>\n</tool_call>\n<tool_call>\n<function=wether>",
        ],
    ),
]
TEXTS = {
    Format.HARMONY: [
        "<|channel|>final<|message|>Hello, {you} to=functions.x",
        "<|channel|>final <|constrain|>json<|message|>{}",
        "<|channel|>commentary<|message|>First I look.<|end|><|start|>assistant<|channel|>final<|message|>Done.",
    ]
}
IDS = [format.value for format, *_ in DIALECTS]


def fits(grammar: str, text: str) -> bool:
    """Whether the text is a whole one of the grammar, when its marks are tokens of their own."""
    place, rest = VOCABULARY.compile(grammar).start(), text
    while rest:
        mark = next((mark for mark in MARKS if rest.startswith(mark)), "")
        end = min((at for at in (rest.find(mark, 1) for mark in MARKS) if at > 0), default=len(rest))
        piece, rest = (mark, rest[len(mark) :]) if mark else (rest[:end], rest[end:])
        for token in [len(PIECES) - len(MARKS) + MARKS.index(mark)] if mark else _tokens(piece):
            if not place.allows(token):
                return False
            place.accept(token)
    return place.allows(END)


def _tokens(text: str) -> list[int]:
    return MODEL.tokenize(text, parse_special=False)


@pytest.mark.parametrize(("format", "calls", "right", "wrong"), DIALECTS, ids=IDS)
def test_a_call_names_a_tool_that_is_there_with_arguments_of_its_schema(
    format: Format, calls: Calls, right: list[str], wrong: list[str]
) -> None:
    grammar = calls([WEATHER, CLOCK], None)
    for text in right:
        assert fits(grammar, text), text
    for text in wrong:
        assert not fits(grammar, text), text


@pytest.mark.parametrize(("format", "calls", "right", "wrong"), DIALECTS, ids=IDS)
def test_what_is_held_is_read_as_the_calls_that_it_is(
    format: Format, calls: Calls, right: list[str], wrong: list[str]
) -> None:
    for text in right:
        parser = Dialect(format).parser()
        events = [*parser.feed(text), *parser.finish()]
        finished = [event for event in events if isinstance(event, CallFinished)]
        assert finished and {event.name for event in finished} <= {"weather", "get-time"}
        assert all(isinstance(json.loads(event.arguments), dict) for event in finished)
        assert not any(isinstance(event, CallBroken) for event in events), text


@pytest.mark.parametrize(("format", "calls", "right", "wrong"), DIALECTS, ids=IDS)
def test_text_around_calls_is_free(format: Format, calls: Calls, right: list[str], wrong: list[str]) -> None:
    grammar = calls([WEATHER, CLOCK], None)
    for text in TEXTS.get(format, ["", "Plain {text} [with] <marks> ä\n\n"]):
        assert fits(grammar, text), text


@pytest.mark.parametrize(("format", "calls", "right", "wrong"), DIALECTS, ids=IDS)
def test_it_is_followed_from_the_mark_on(format: Format, calls: Calls, right: list[str], wrong: list[str]) -> None:
    mark = next(mark for mark in MARKS if right[0].startswith(mark))
    for spelt in ([len(PIECES) - len(MARKS) + MARKS.index(mark)], _tokens(mark)):
        place = VOCABULARY.compile(calls([WEATHER], None), mark).start()
        free = _tokens("anything")[0]
        assert place.allowed(np.array([free])).all()
        for token in spelt:
            assert place.allows(token)
            place.accept(token)
        (no,) = _tokens("%")
        assert not place.allows(no)


FORCED: dict[Format, list[str]] = {  # one call, then two, of which the second is a clock
    Format.LLAMA: [
        '{"name": "weather", "parameters": {"city": "Ulm"}}',
        '{"name": "weather", "parameters": {"city": "Ulm"}}; {"name": "get-time", "parameters": {}}',
    ],
    Format.MISTRAL: [
        '[TOOL_CALLS]weather[ARGS]{"city": "Ulm"}',
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ulm"}}, {"name": "get-time", "arguments": {}}]',
        '[TOOL_CALLS]weather[ARGS]{"city": "Ulm"}[TOOL_CALLS]get-time[ARGS]{}',
    ],
    Format.GEMMA: [
        f"<|tool_call>call:weather{{city:{Q}Ulm{Q}}}<tool_call|>",
        f"<|tool_call>call:weather{{city:{Q}Ulm{Q}}}<tool_call|><|tool_call>call:get-time{{}}<tool_call|>",
    ],
    Format.FUNCTION_GEMMA: [
        f"<start_function_call>call:weather{{city:{E}Ulm{E}}}<end_function_call>",
        f"<start_function_call>call:weather{{city:{E}Ulm{E}}}<end_function_call>"
        "<start_function_call>call:get-time{}<end_function_call>",
    ],
    Format.HARMONY: [
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Ulm"}',
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.get-time <|constrain|>json<|message|>{}",
    ],
    Format.QWEN_CODER: [
        "<tool_call>\n<function=weather>\n<parameter=city>\nUlm, <b>\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=get-time>\n<parameter=any>\nthing\n</parameter>\n</function>\n</tool_call>",
    ],
}


@pytest.mark.parametrize(("format", "calls", "right", "wrong"), DIALECTS, ids=IDS)
def test_forced_calls_are_the_whole_answer(format: Format, calls: Calls, right: list[str], wrong: list[str]) -> None:
    one, several = (calls([WEATHER, CLOCK], Forced(calls_max)) for calls_max in (1, 2))
    for text in FORCED[format]:
        parser = Dialect(format).parser([])
        made = [event.name for event in (*parser.feed(text), *parser.finish()) if isinstance(event, CallFinished)]
        assert 1 <= len(made) <= 2 and fits(several, text), text
        assert fits(one, text) is (len(made) == 1), text
        assert not fits(several, f"Well, {text}") and not fits(several, text[:-1]) and not fits(several, f"{text} so")
        assert not fits(several, text.replace("weather", "wether").replace("get-time", "time")), text
    for text in ("", "Hello", *wrong):
        assert not fits(several, text), text


@pytest.mark.parametrize("format", [Format.MISTRAL, Format.GEMMA, Format.QWEN_CODER])
def test_a_thought_may_precede_forced_calls(format: Format) -> None:
    calls = next(each[1] for each in DIALECTS if each[0] is format)
    text = FORCED[format][0]
    grammar = calls([WEATHER, CLOCK], Forced(1, ReasoningMarks("<think>", "</think>")))
    assert fits(grammar, text) and fits(grammar, f"<think>hm</think>\n\n{text}")
    assert not fits(grammar, f"<think>hm</think>Well, {text}")


@pytest.mark.parametrize(
    "value", ["<parameter=days>\nsoon\n</parameter>\n", "<parameter=unit>\nK\n</parameter>\n", "<parameter=town>\nX"]
)
def test_parameters_of_forced_calls_have_the_names_and_types_of_the_schema(value: str) -> None:
    head = "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n"
    assert not fits(qwen_coder_calls([WEATHER], Forced(1)), f"{head}{value}</function>\n</tool_call>")
    without = "<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    assert not fits(qwen_coder_calls([WEATHER], Forced(1)), without)


def test_a_text_of_a_forced_call_has_no_more_characters_than_the_schema_lets_it() -> None:
    save = CallableFunction("save", {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}})
    grammar = qwen_coder_calls([save], Forced(1))
    for city, is_short in (("", True), ("Ulm", True), ("Kölns", True), ("Berlin", False)):
        call = f"<tool_call>\n<function=save>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"
        assert fits(grammar, call) is is_short, city
