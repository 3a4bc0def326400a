"""What a newcomer tries first is answered right: by the bundled model, its tools and the sample documents.

Greedy, and each as the first question of a conversation. The last ones have what the chat page sends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.clients.conftest import MODEL

TOOLS: Any = [
    {"type": f"firsttoken:{name}"} for name in ("calculator", "current_time", "convert_units", "search_documents")
]
DOCUMENTS: Any = [{"type": "file_search", "vector_store_ids": ["docs"]}]
PAGE: Any = [
    {"type": "file_search", "vector_store_ids": ["docs"], "ranking_options": {"score_threshold": 0.4}},
    *TOOLS[:3],
]
UNKNOWN = "I am only a small demo model and I do not know that. Ask me about your documents, or give me a tool for it."
DECLINED = "I could not find that in the documents."
CLOCK_LEEWAY_S = 120  # between the tool's look at the clock and ours


@pytest.fixture
def client(lenient_client: OpenAI) -> OpenAI:
    """The client does not know the types of our tools."""
    return lenient_client


def ask(client: OpenAI, question: str, tools: Any) -> Response:
    return client.responses.create(model=MODEL, input=question, tools=tools, temperature=0, store=False)


def calls(response: Response) -> list[tuple[str, dict[str, Any]]]:
    return [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]


@pytest.mark.parametrize(
    ("question", "expression", "value"),
    [
        ("What is 127 * 49?", "127 * 49", "6223"),
        ("what is 2 + 2", "2 + 2", "4"),
        ("What is 15 % of 240?", "15 / 100 * 240", "36"),
        ("Calculate 81 / 9.", "81 / 9", "9"),
        ("Multiply 8 by 5.", "8 * 5", "40"),
        ("Subtract 20 from 64.", "64 - 20", "44"),
    ],
)
def test_a_sum_is_computed_and_told(client: OpenAI, question: str, expression: str, value: str) -> None:
    response = ask(client, question, TOOLS)
    assert calls(response) == [("calculator", {"expression": expression})]
    assert response.output_text == f"{expression} = {value}."


@pytest.mark.parametrize(
    ("question", "zones"),
    [
        ("What time is it in Tokyo?", ["Asia/Tokyo"]),
        ("What time is it in Tokyo and what time is it in Paris?", ["Asia/Tokyo", "Europe/Paris"]),
        ("What time is it in Berlin and London?", ["Europe/Berlin", "Europe/London"]),
    ],
)
def test_clocks_are_looked_at_in_one_step(client: OpenAI, question: str, zones: Sequence[str]) -> None:
    response = ask(client, question, TOOLS)
    assert calls(response) == [("current_time", {"timezone": zone}) for zone in zones]
    kinds = [item.type for item in response.output]
    assert kinds == ["function_call"] * len(zones) + ["function_call_output"] * len(zones) + ["message"]
    told = re.findall(r"It is (\d\d:\d\d) in (\S+)\.", response.output_text)
    assert [zone for _, zone in told] == list(zones)
    assert all(is_now(time, zone) for time, zone in told)


def is_now(time: str, zone: str) -> bool:
    now = datetime.now(ZoneInfo(zone))
    then = now.replace(hour=int(time[:2]), minute=int(time[3:]), second=0, microsecond=0)
    seconds = abs((now - then).total_seconds())
    return min(seconds, 86_400 - seconds) < CLOCK_LEEWAY_S


@pytest.mark.parametrize(
    ("question", "arguments", "value"),
    [
        ("How many meters are 12 feet?", {"value": 12, "from_unit": "feet", "to_unit": "meters"}, "3.6576"),
        ("Convert 5 miles to km.", {"value": 5, "from_unit": "miles", "to_unit": "km"}, "8.04672"),
    ],
)
def test_an_amount_is_converted(client: OpenAI, question: str, arguments: dict[str, Any], value: str) -> None:
    response = ask(client, question, TOOLS)
    assert calls(response) == [("convert_units", arguments)]
    assert value in response.output_text


def test_different_tools_are_called_in_one_step(client: OpenAI) -> None:
    response = ask(client, "What is 45 * 8 and how many meters are 12 feet?", TOOLS)
    conversion = {"value": 12, "from_unit": "feet", "to_unit": "meters"}
    assert calls(response) == [("calculator", {"expression": "45 * 8"}), ("convert_units", conversion)]
    assert response.output_text == "45 * 8 = 360. 12 feet is 3.6576 meters."


@pytest.mark.parametrize(
    ("question", "expression", "value"),
    [
        ("Convert 2 hours to minutes, then add 15 to the result.", "120 + 15", "135"),
        ("Convert 3 hours to minutes, then multiply the result by 4.", "180 * 4", "720"),
        ("Convert 2 hours to minutes and subtract 20 from the result.", "120 - 20", "100"),
        ("Convert 4 hours to minutes, then divide the result by 8.", "240 / 8", "30"),
    ],
)
def test_one_result_feeds_the_next_call(client: OpenAI, question: str, expression: str, value: str) -> None:
    response = ask(client, question, TOOLS)
    assert [name for name, _ in calls(response)] == ["convert_units", "calculator"]
    assert calls(response)[1][1] == {"expression": expression}
    assert value in response.output_text


def test_a_question_goes_on_with_the_result_before(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="What is 12 * 7?", tools=TOOLS, temperature=0)
    second = client.responses.create(
        model=MODEL, input="Now divide that by 4.", tools=TOOLS, temperature=0, previous_response_id=first.id
    )
    assert calls(second) == [("calculator", {"expression": "84 / 4"})]
    assert "21" in second.output_text


@pytest.mark.parametrize(
    ("question", "fact", "file"),
    [
        ("How long are traces kept?", "seven days", "operations.md"),
        ("Which command revokes an API key?", "`firsttoken keys revoke`", "api.md"),
        ("What does the browser use?", "a signed session cookie", "api.md"),
    ],
)
def test_a_fact_of_the_sample_documents_is_cited(client: OpenAI, question: str, fact: str, file: str) -> None:
    response = ask(client, question, DOCUMENTS)
    (message,) = (item for item in response.output if item.type == "message")
    (part,) = message.content
    assert part.type == "output_text"
    assert fact in part.text
    (annotation,) = part.annotations
    assert annotation.to_dict()["firsttoken_filename"] == file


@pytest.mark.parametrize(
    "question", ["Who is the captain of the Zorbian ferry?", "What is the price of a Velmix kettle?"]
)
def test_what_the_documents_do_not_say_is_declined(client: OpenAI, question: str) -> None:
    response = ask(client, question, DOCUMENTS)
    assert response.output_text == DECLINED


@pytest.mark.any_answer("whatever it says, it is no call")
def test_without_tools_no_call_is_begun_and_the_first_words_come_at_once(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="demo-chat",
        messages=[{"role": "user", "content": "What is 12 * 7?"}],
        stream=True,
        temperature=0,
        max_completion_tokens=40,
    )
    pieces = [chunk.choices[0].delta.content for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) > 3 and "call" not in "".join(pieces)


@pytest.mark.parametrize(
    ("greeting", "answer"),
    [
        ("Hello", "Hello! How can I help you?"),
        ("Who are you?", "I am the built-in demo model, a very small language model that runs on this device."),
        ("Thanks", "You are welcome!"),
    ],
)
def test_small_talk_is_answered_in_kind(client: OpenAI, greeting: str, answer: str) -> None:
    assert ask(client, greeting, []).output_text == answer


@pytest.mark.parametrize(
    ("question", "fact"),
    [
        ("What is 127 * 49?", "6223"),
        ("How many meters are 12 feet?", "3.6576"),
        ("How long are traces kept?", "seven days"),
        ("Which port does the worker listen on?", "8080"),
        ("Who are you?", "the built-in demo model"),
    ],
)
def test_with_documents_and_tools_the_right_one_answers(client: OpenAI, question: str, fact: str) -> None:
    assert fact in ask(client, question, PAGE).output_text


@pytest.mark.parametrize(
    "question", ["What is the capital of France?", "Explain quantum computing.", "Who is the president of the USA?"]
)
def test_what_nothing_here_tells_is_not_made_up(client: OpenAI, question: str) -> None:
    response = ask(client, question, PAGE)
    assert not calls(response) and response.output_text in (UNKNOWN, DECLINED)
