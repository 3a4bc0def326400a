"""Files of cases: what they may say, and the one line that a wrong one ends in."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.cli.evals.suite import read_suites
from worker.errors import StartError

TOML = """
[suite]
name = "support"
instructions = "Be brief."
stores = ["handbook"]
max_tokens = 64

[[case]]
id = "refund"
input = "How long may I send it back?"
[case.expect]
pattern = "14 days"
cites = [{ file = "returns.md", says = ["14 days"] }]

[[case]]
messages = [{ role = "user", content = "Hello" }]
instructions = "Greet."
stores = []
expect.exact = ["Hello!", "Hi!"]
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_what_a_case_does_not_say_is_that_of_its_file(tmp_path: Path) -> None:
    refund, hello = read_suites([written(tmp_path, "support.toml", TOML)]).cases
    assert (refund.id, refund.group, refund.instructions, refund.stores) == (
        "refund",
        "support",
        "Be brief.",
        ["handbook"],
    )
    assert (hello.id, hello.instructions, hello.stores, hello.max_tokens) == ("support-2", "Greet.", [], 64)
    assert (refund.expect.graders, hello.expect.graders) == (("pattern", "cites"), ("exact",))


def test_lines_of_json_are_cases_too_and_the_first_may_say_what_holds_for_all(tmp_path: Path) -> None:
    text = '{"suite": {"name": "s"}}\n\n{"input": "a", "expect": {"like": "b"}}\n'
    (case,) = read_suites([written(tmp_path, "some.jsonl", text)]).cases
    assert (case.id, case.group, case.question) == ("some-1", "s", "a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"input": "a"}', ":1: expect: is missing"),
        ('\n{"input": "a", "expect": {}}', ":2: expect: say what a correct answer has"),
        ('{"input": "a", "expect": {"exact": "b"}, "colour": 1}', ":1: colour: there is no such key"),
        ('{"input": "a", "expect": {"pattern": "(?=a)"}}', ":1: expect.pattern: not a pattern"),
        ('{"input": "a", "expect": {"schema": {"type": "thing"}}}', ":1: expect.schema:"),
        ('{"input": "a", "messages": [{"role": "user"}], "expect": {"exact": "b"}}', "either input or messages"),
        ('{"messages": [{"role": "robot"}], "expect": {"exact": "b"}}', ":1: messages: each message must have a role"),
        ('{"input": "a", "expect": {"finds": [{"file": "x"}]}}', ":1: stores: name what is searched"),
        ('{"id": "x", "input": "a", "expect": {"exact": "b"}}\n' * 2, ":2: id: two cases have the id x"),
        ("nothing", ":1: not JSON"),
        ('"text"', ":1: case:"),
        ('{"suite": {"documents": "away"}}', "suite.documents: there is no folder"),
        ("", "there is no case"),
    ],
)
def test_a_wrong_line_is_named_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(StartError) as error:
        read_suites([written(tmp_path, "cases.jsonl", text)])
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('pattern = "14 days"', 'pattern = "("', ":12: case.0.expect.pattern: not a pattern"),
        (
            'says = ["14 days"]',
            'say = ["14 days"]',
            ":13: case.0.expect.cites.0.say: there is no such key; did you mean says?",
        ),
        ("max_tokens = 64", "max_tokens = 0", ":6: suite.max_tokens: Input should be greater"),
        ('instructions = "Greet."', "instructions = 1", ":17: case.1.instructions: Input should be a valid string"),
        ('id = "refund"', 'id = "refund"\ncolour = 1', ":10: case.0.colour: there is no such key"),
        ("[suite]", "[sweet]", ":2: sweet: there is no such key"),
        ("[[case]]", "[[case", "not valid TOML"),
    ],
)
def test_a_wrong_key_of_toml_is_named_with_its_line(tmp_path: Path, before: str, after: str, said: str) -> None:
    with pytest.raises(StartError) as error:
        read_suites([written(tmp_path, "cases.toml", TOML.replace(before, after, 1))])
    assert said in str(error.value)
