from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest

from training import functions, plural
from training.conversations import Conversations
from training.functions import Function, Parameter, Request, Tool
from training.joined import joined, woven
from training.plural import Way
from training.values import Chooser, Kind, Unfit

HOTELS = Function(
    "find_hotels",
    "Find hotels",
    (
        Parameter("city", Kind("@city"), "City"),
        Parameter("nights", Kind("i21-90"), "Nights"),
        Parameter("guests", Kind("i101-180"), "Guests", required=False),
    ),
    ("Find hotels in {city} for {nights} nights.",),
)
WEATHER = Function(
    "weather", "Weather", (Parameter("place", Kind("@city"), "Place"),), ("How is the weather in {place}?",)
)


@pytest.fixture
def choose() -> Chooser:
    return Chooser("plural")


def made(way: Way, choose: Chooser, function: Function = HOTELS, times: int = 60) -> list[Request]:
    found = []
    for _ in range(times):
        with suppress(Unfit):
            found.append(way(choose, function.tool(choose), 3))
    assert found
    return found


@pytest.mark.parametrize("way", dict.fromkeys(plural.WAYS))
def test_a_request_in_any_way_says_each_argument_of_each_call(way: Way, choose: Chooser) -> None:
    for request in made(way, choose):
        assert len(request.calls) > 1
        for call in request.calls:
            assert all(str(value) in request.text for value in call["arguments"].values()), request.text


def test_what_stands_before_the_values_is_said_once(choose: Chooser) -> None:
    requests = made(plural._tails, choose)
    assert all(request.text.count("Find hotels") == 1 for request in requests)
    assert any(re.search(r"in .+ for \d+(, | and |,).*in .+ for \d+", request.text) for request in requests)


@pytest.mark.parametrize("template", ["A box of {a} by {b}.", "Is it a {a}?", "Sum {a}, {b}.", "From {a} to {b}."])
def test_values_beside_others_of_their_sort_are_not_listed(template: str, choose: Chooser) -> None:
    numbers = (Parameter("a", Kind("i2-9"), "A"), Parameter("b", Kind("i2-9"), "B"))
    function = Function("f", "F", numbers, (template,))
    assert plural._listable(function.tool(choose), template) == []


def test_a_table_has_a_line_for_each_call(choose: Chooser) -> None:
    for request in made(plural._table, choose):
        lines = [line for line in request.text.splitlines()[1:] if re.search(r"\d", line)]
        assert len(lines) == len(request.calls)
        for line, call in zip(lines, request.calls, strict=True):
            assert call["arguments"]["city"] in line


def test_all_else_stays_where_one_value_differs(choose: Chooser) -> None:
    for request in made(plural._differing, choose):
        first, *others = [call["arguments"] for call in request.calls]
        told = re.sub(r"^Find hotels in .+? nights\. ", "", request.text)
        for other in others:
            new = {name for name in other if other[name] != first.get(name)}
            assert new
            assert all((name[:4] in told) == (name in new) for name in other), told


def test_two_tools_are_asked_about_the_same_place(choose: Chooser) -> None:
    tools = HOTELS.tool(choose), WEATHER.tool(choose)
    asked = [joined(choose, woven(choose, *tools)) for _ in range(60)]
    for request in asked:
        hotel, weather = (call["arguments"] for call in request.calls)
        assert hotel["city"] == weather["place"]
        assert hotel["city"] in request.text
    assert any(request.text.count(request.calls[0]["arguments"]["city"]) == 1 for request in asked)


def test_tools_without_a_common_thing_are_not_woven_together(choose: Chooser) -> None:
    colour = Function("paint", "Paint", (Parameter("colour", Kind("@colour"), "Colour"),), ("Paint it {colour}.",))
    assert woven(choose, WEATHER.tool(choose), colour.tool(choose)) == []


def test_several_requests_are_joined_in_the_order_of_their_calls(choose: Chooser) -> None:
    one, other = Request("Do it.", [call("a")]), Request("Is it done?", [call("b")])
    for _ in range(20):
        request = joined(choose, [one, other])
        assert request.text.lower().index("do it") < request.text.lower().index("is it done")
        assert [each["name"] for each in request.calls] == ["a", "b"]


def test_a_name_at_the_beginning_of_a_request_keeps_its_capital(choose: Chooser) -> None:
    requests = [Request("Stop it.", [call("a")]), Request("Oslo: the weather?", [call("b", place="Oslo")])]
    assert all("Oslo" in joined(choose, requests).text for _ in range(40))


def call(name: str, **arguments: object) -> functions.Call:
    return {"name": name, "arguments": arguments}


def test_a_request_says_every_argument_of_its_calls(choose: Chooser) -> None:
    tool = Function("f", "Send", (Parameter("to", Kind("@email"), "To"),), ("Mail {to}.",)).tool(choose)
    request = plural.several(choose, tool)
    assert all(each["arguments"]["to"] in request.text for each in request.calls)


def test_what_somebody_tells_of_himself_is_not_asked_for_several_values(choose: Chooser) -> None:
    told = ("My name is {name}. Am I on the list?", "Look up {name}.")
    tool = Function("find", "Find", (Parameter("name", Kind("@person"), "Name"),), told).tool(choose)
    for _ in range(60):
        with suppress(Unfit):
            assert not re.search(r"y name is \w+ \w+(,| and)", plural.several(choose, tool).text)


def test_nothing_is_asked_for_twice_in_one_request(choose: Chooser) -> None:
    tool: Tool = Function("f", "Who is in space", (), ("Who is in space?",)).tool(choose)
    conversations = Conversations("twice")
    for _ in range(40):
        with pytest.raises(Unfit):
            conversations.several([tool])
        with suppress(Unfit):
            _, answer = conversations.several([HOTELS.tool(choose)])
            calls = [json.dumps(each["function"]) for each in answer["tool_calls"]]
            assert len(set(calls)) == len(calls)
