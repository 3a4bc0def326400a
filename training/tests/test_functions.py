from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import jsonschema
import pytest

from training import functions, plural
from training.functions import CLAUSE, NAMED, Function, Parameter, Request, Tool
from training.values import DATA, MIXTURE, POOLS, SPOKEN, Chooser, Kind, Unfit, in_words, pools

EVERYDAY = list(functions.read())
ALL = [*EVERYDAY, *functions.read(functions.SERVICES)]


@pytest.fixture
def choose() -> Chooser:
    return Chooser("functions")


def fits(tool: Tool, arguments: object) -> None:
    schema = {**tool.schema["function"]["parameters"], "additionalProperties": False}
    assert not list(jsonschema.Draft202012Validator(schema).iter_errors(arguments)), tool.name


def asked(choose: Chooser, *ways: Callable[[Chooser], Request]) -> list[Request]:
    """Those that can be asked."""
    made = []
    for way in ways:
        with suppress(Unfit):
            made.append(way(choose))
    return made


def test_every_way_to_ask_says_what_the_function_requires() -> None:
    for function in ALL:
        known = {p.name for p in function.parameters}
        for template in function.templates:
            said = set(NAMED.findall(CLAUSE.sub("", template)))
            outer = {name.partition(".")[0] for name in said}
            required = {p.name for p in function.parameters if p.required and p.name.rpartition(".")[0] in ("", *outer)}
            assert required <= said | outer, f"{function.name}: {template}"
            assert set(NAMED.findall(template)) <= known, f"{function.name}: {template}"


def test_more_files_of_functions_leave_those_of_the_first_in_their_places() -> None:
    first = list(functions.read(functions.FILES[0]))
    assert first == EVERYDAY[: len(first)]
    assert len(EVERYDAY) > len(first)


def test_no_two_functions_have_the_same_name() -> None:
    assert len({function.name for function in EVERYDAY}) == len(EVERYDAY)


def test_the_calls_of_a_request_fit_the_schema_of_their_tool(choose: Chooser) -> None:
    for function in ALL:
        tool = function.tool(choose)
        for made in asked(choose, tool.ask, partial(plural.several, tool=tool)):
            for call in made.calls:
                assert call["name"] == tool.name
                fits(tool, call["arguments"])


def test_a_parameter_with_a_dot_is_a_property_of_an_object(choose: Chooser) -> None:
    wanted = (Parameter("size", Kind("o"), "Size"), Parameter("size.width", Kind("i21-90"), "Width"))
    tool = Function("crop", "Crop", wanted, ("Crop it to {size.width} pixels.",)).tool(choose)
    schema = tool.schema["function"]["parameters"]
    assert schema["required"] == ["size"]
    assert schema["properties"]["size"]["required"] == ["width"]
    made = tool.ask(choose)
    width = made.calls[0]["arguments"]["size"]["width"]
    assert made.text == f"Crop it to {width} pixels."


def test_a_clause_is_said_with_its_value_or_left_out(choose: Chooser) -> None:
    wanted = (Parameter("to", Kind("@email"), "To"), Parameter("copies", Kind("i21-60"), "Copies", required=False))
    function = Function("send", "Send", wanted, ("~{copies} times, ~mail {to}.",))
    made = [function.tool(choose).ask(choose) for _ in range(80)]
    said = [request for request in made if " times, mail" in request.text]
    assert said
    assert any(re.fullmatch(r"Mail \S+", request.text) for request in made)
    assert all(request.text.startswith(f"{request.calls[0]['arguments']['copies']} times") for request in said)


def test_a_request_reads_well_whichever_of_its_clauses_are_said(choose: Chooser) -> None:
    for function in functions.read(functions.DETAILED, functions.LIBRARIES, functions.PLURAL):
        made = asked(choose, *(function.tool(choose).ask for _ in range(12)))
        assert made, function.name
        for request in made:
            assert not re.search(r"  | [,.;?!]|[,;]{2}|~|^[ ,]", request.text), request.text


def test_a_value_has_the_article_that_its_words_need(choose: Chooser) -> None:
    wanted = (Parameter("kind", Kind("e(open=old one,unit,18,owl)"), "Kind"),)
    tool = Function("buy", "Buy", wanted, ("Buy a {kind}.",)).tool(choose)
    said = {tool.ask(choose).text for _ in range(60)}
    assert said == {"Buy an old one.", "Buy a unit.", "Buy an 18.", "Buy an owl."}


def test_what_is_told_in_passing_stands_in_the_call(choose: Chooser) -> None:
    wanted = (Parameter("at", Kind("@city"), "At"), Parameter("limit", Kind("i21-90"), "Limit", required=False))
    function = Function("look", "Look", wanted, ("Look at {at}.",))
    made = [function.tool(choose).ask(choose) for _ in range(120)]
    told = [request for request in made if "limit" in request.calls[0]["arguments"]]
    assert any(re.fullmatch(r"[^.?]*\d+[^.?]*\.", request.text) for request in told)
    for request in made:
        limit = request.calls[0]["arguments"].get("limit")
        assert re.findall(r"\d+", request.text) == ([str(limit)] if limit else [])


def test_a_request_without_its_facts_is_answered_with_a_question_for_them(choose: Chooser) -> None:
    function = next(f for f in EVERYDAY if f.name == "book_flight")
    made = function.tool(choose).unspecified(choose)
    assert all(word in made[1] for word in ("origin", "destination", "date"))


def test_functions_of_real_services_keep_their_names(choose: Chooser) -> None:
    for function in functions.read(functions.SERVICES):
        assert function.tool(choose).name == function.name


def test_a_value_fits_the_schema_of_its_kind(choose: Chooser) -> None:
    ranges = ("i1-9", "i500-90000", "n0.5-2", "p0.01-0.2", "li", "l1-9", "ln0.5-2", "ln-5-35")
    for kind in map(Kind, (*ranges, "b", "b(with it/without)", "e(red,blue)", "@city", "@date", "@time", "l@city")):
        for _ in range(40):
            jsonschema.validate(kind.said(choose).value, kind.schema())


def test_every_kind_of_the_functions_has_values(choose: Chooser) -> None:
    for kind in {parameter.kind for function in ALL for parameter in function.parameters} - {Kind("o")}:
        assert kind.said(choose).words, kind


def test_a_word_has_words_of_other_pools_in_its_braces_and_a_text_the_same_for_the_same_name(choose: Chooser) -> None:
    assert not any("{" in choose.word(name) for name in ("person", "code", "email", "dna", "date", "version"))
    made = choose.fill("{day} {day2} {day} {thing}", thing="x")
    one, other, again, thing = made.split()
    assert one == again != other
    assert thing == "x"


@pytest.mark.parametrize("text", ["A train starts. Find its speed.", "prime 7", "My number is 7.", "Is 7 prime?"])
def test_please_stands_before_an_order_alone(text: str, choose: Chooser) -> None:
    assert any(functions.typed(choose, "Check 7.") == "Please check 7." for _ in range(200))
    assert not any(functions.typed(choose, text).startswith("Please") for _ in range(200))


def test_a_number_with_thousands_separators_is_the_number_that_is_meant(choose: Chooser) -> None:
    said = [Kind("i1000-90000").said(choose) for _ in range(60)]
    assert any("," in each.words for each in said)
    assert all(int(each.words.replace(",", "")) == each.value for each in said)


def test_a_percentage_is_a_fraction_where_the_description_asks_for_one(choose: Chooser) -> None:
    rate = Parameter("rate", Kind("n2-9"), "Interest in percent")
    varied = [rate.varied(choose) for _ in range(20)]
    assert {each.scale for each in varied} == {1, 0.01}
    for each in varied:
        said = each.said(choose)
        assert said.value == pytest.approx(float(said.words) * each.scale)
        assert ("in percent" in each.description) == (each.scale == 1)


def test_the_same_for_another_value_is_another_call(choose: Chooser) -> None:
    tool = Function("f", "Look", (Parameter("at", Kind("@city"), "At"),), ("Look at {at}.",)).tool(choose)
    made = [request for _ in range(80) if "the same" in (request := plural.several(choose, tool)).text]
    assert made
    assert all(call["arguments"]["at"] in request.text for request in made for call in request.calls)


def test_a_year_is_neither_rounded_nor_has_a_comma(choose: Chooser) -> None:
    said = [Kind("i1066-2024").said(choose) for _ in range(60)]
    assert all(each.words == str(each.value) for each in said)
    assert len({each.value for each in said}) > 50


def test_a_share_is_said_in_percent_too(choose: Chooser) -> None:
    said = [Kind("p0.01-0.2").said(choose) for _ in range(40)]
    assert any(each.words.endswith("%") for each in said)
    for each in said:
        number = float(re.split(r"%| percent", each.words)[0])
        assert number == pytest.approx(each.value * (1 if each.words == str(each.value) else 100))


def test_every_number_of_the_mixture_is_used() -> None:
    code = "".join(path.read_text() for path in DATA.parent.glob("*.py"))
    assert [name for name in MIXTURE if f'"{name}"' not in code] == []


def test_no_two_pools_of_words_have_the_same_name() -> None:
    assert len(list(pools())) == len(POOLS)


def test_a_value_may_have_words_of_its_own(choose: Chooser) -> None:
    kinds = (Kind("b(with pets/no pets)"), Kind("e(en=English,pt_br)"))
    said = {(each.value, each.words) for kind in kinds for each in (kind.said(choose) for _ in range(40))}
    assert said == {(True, "with pets"), (False, "no pets"), ("en", "English"), ("pt_br", "pt br")}
    assert [kind.schema() for kind in kinds] == [{"type": "boolean"}, {"type": "string", "enum": ["en", "pt_br"]}]


def test_a_code_is_said_by_its_name_too_where_its_description_asks_for_a_code(choose: Chooser) -> None:
    codes = [Kind("@cc").said(choose, "Two-letter country code") for _ in range(60)]
    assert {each.words == each.value for each in codes} == {True, False}
    assert all(each.words in (each.value, *SPOKEN[each.value]) for each in codes)
    assert all(each.words == each.value for each in (Kind("@cc").said(choose, "Country") for _ in range(60)))


def test_a_list_of_objects_is_said_as_one_says_its_things(choose: Chooser) -> None:
    kind = Kind("lo(what=@drink,count=i21-60/{count} {what})")
    for _ in range(20):
        said = kind.said(choose)
        jsonschema.validate(said.value, kind.schema())
        assert all(f"{each['count']} {each['what']}" in said.words for each in said.value)


def test_a_date_is_written_as_its_description_asks(choose: Chooser) -> None:
    for _ in range(20):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", Kind("@date").said(choose, "Day as YYYY-MM-DD").value)
        assert re.fullmatch(r"[0-3]\d/[01]\d/\d{4}", Kind("@date").said(choose, "Day as DD/MM/YYYY").value)
        assert re.fullmatch(r"\d\d:\d\d", Kind("@time").said(choose, "Start as HH:MM").value)


def test_the_name_of_a_module_stays_before_its_function(choose: Chooser) -> None:
    function = Function("geometry.circle_area", "Area of a circle", (), ("Area?",))
    names = {function.tool(choose).name for _ in range(40)}
    assert names == {"geometry.circle_area", "geometry.circleArea"}


def test_names_that_differ_have_the_same_parameters(choose: Chooser) -> None:
    function = EVERYDAY[0]
    names = {function.tool(choose).name for _ in range(60)}
    assert function.name in names
    assert len(names) > 4
    assert all(re.fullmatch(r"[A-Za-z0-9_]+", name) for name in names)
    assert json.dumps(function.tool(choose).schema)


@pytest.mark.parametrize(
    ("described", "asked"),
    [
        ("Writes a text backwards", "Write a text backwards"),
        ("Searches the log", "Search the log"),
        ("Applies a filter", "Apply a filter"),
        ("Facts about a river", "Facts about a river"),
        ("Process a file", "Process a file"),
    ],
)
def test_what_a_function_does_is_asked_for_as_an_order(described: str, asked: str) -> None:
    assert functions.imperative(described) == asked


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (17, "seventeen"),
        (40, "forty"),
        (99, "ninety-nine"),
        (2514, "two thousand five hundred fourteen"),
        (43_000, "forty-three thousand"),
    ],
)
def test_numbers_are_written_in_words(number: int, words: str) -> None:
    assert in_words(number) == words
