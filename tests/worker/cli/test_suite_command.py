"""`firsttoken eval suite` as people and programs run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving import ROOT
from tests.worker.cli.test_main import complaint, firsttoken
from worker.cli.main import main

SUITES = ROOT / "benchmarks" / "suites"
RECORDED = SUITES / "recorded.json"
TOOL = {
    "name": "calculator",
    "description": "Evaluate an arithmetic expression.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "The arithmetic expression"}},
        "required": ["expression"],
    },
}
SUM = {
    "id": "sum",
    "input": "What is 127 * 49?",
    "tools": [TOOL],
    "expect": {"calls": [{"name": "calculator", "arguments": {"expression": "127 * 49"}}]},
}


@pytest.fixture
def side(server: dict[str, Any], tmp_path: Path) -> list[str]:
    """The worker that all tests share, as a side."""
    key = tmp_path / "key"
    key.write_text(server["api_key"] + "\n")
    return ["--model", f"demo-chat@{server['url']}/v1", "--model-key-file", str(key)]


def cases(tmp_path: Path, *lines: dict[str, Any]) -> str:
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.mark.any_answer("a share of many answers is compared with one that was recorded, within a margin")
def test_the_bundled_model_and_retrieval_are_as_good_as_they_were(side: list[str], capsys: Any) -> None:
    """The gate of this project itself. After a change that is meant, `recorded.json` is written anew."""
    files = [str(SUITES / "bundled.jsonl"), str(SUITES / "retrieval.toml")]
    code = main(["eval", "suite", *files, *side, "--against", str(RECORDED), "--margin", "0.15", "--at-once", "4"])
    told = capsys.readouterr()
    assert code == 0, told.out + told.err
    assert "Not worse" in told.out


def test_who_is_worse_does_not_pass_and_the_reports_say_why(side: list[str], tmp_path: Path) -> None:
    """What was recorded called a tool; now the tool has another name."""
    before, after, report = tmp_path / "before.json", tmp_path / "after.json", tmp_path / "report.md"
    first = firsttoken("eval", "suite", cases(tmp_path, SUM), *side, "--json", str(before))
    assert first.returncode == 0, first.stderr
    assert "1 cases, mean score 1.000" in first.stdout
    told = json.loads(before.read_text())
    told["cases"][0].update(score=0.0, grades={"calls": 0.0})
    (tmp_path / "worse.json").write_text(json.dumps(told))
    path = cases(tmp_path, SUM)
    passed = firsttoken("eval", "suite", path, *side, "--against", str(tmp_path / "worse.json"))
    assert passed.returncode == 0, passed.stderr
    told["cases"][0].update(score=1.0, grades={"calls": 1.0})
    wrong = {**SUM, "expect": {"calls": [{"name": "calculator", "arguments": {"expression": "1 + 1"}}]}}
    path = cases(tmp_path, wrong)
    recorded = firsttoken("eval", "suite", path, *side, "--json", str(after))
    assert "mean score 0.000" in recorded.stdout
    mark = json.loads(after.read_text())["cases"][0]["fingerprint"]
    told["cases"][0]["fingerprint"] = mark
    before.write_text(json.dumps(told))
    done = firsttoken(
        *("eval", "suite", path, *side, "--against", str(before), "--json", str(after), "--report", str(report))
    )
    assert done.returncode == 1
    assert "Worse: -1.000" in done.stdout
    assert done.stderr.splitlines()[-1].endswith("recorded: worse")
    assert json.loads(after.read_text())["verdict"] == "worse"
    assert "## Cases with another outcome" in report.read_text()
    assert report.with_suffix(".svg").read_text().startswith("<svg")


@pytest.mark.long
@pytest.mark.any_answer("both sides are the same model")
def test_two_configurations_are_started_and_asked_in_turns(tmp_path: Path) -> None:
    path = cases(tmp_path, SUM)
    command = ["eval", "suite", path, "--model", "demo-chat", "--against", "demo-chat --draft lookup"]
    assert firsttoken(*command).returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "demo-chat --colour red"], "unrecognized arguments: --colour red"),
        (["--model", "x@http://127.0.0.1:9"], "http://127.0.0.1:9: there is no response"),
        (["--model", "run.json"], "--model must be a model or a server"),
        (["--model", "x y@http://there"], "--model must be a model with settings"),
        (["--model", "'x"], "--model: No closing quotation"),
        (["--model", "demo-chat", "--against", "away.json"], "there is no file away.json"),
        (["--model", "demo-chat", "--model-key-file", "key"], "a key file is only for NAME@URL"),
    ],
)
def test_what_cannot_be_asked_is_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    assert said in complaint("eval", "suite", cases(tmp_path, SUM), *options)


def test_cases_that_need_a_judge_say_so(tmp_path: Path) -> None:
    judged = {"input": "Hello", "expect": {"judge": "It greets."}}
    assert "name one with --judge" in complaint("eval", "suite", cases(tmp_path, judged), "--model", "demo-chat")


def test_a_file_that_cannot_be_read_is_one_line_with_key_and_line(tmp_path: Path) -> None:
    path = cases(tmp_path, SUM, {"input": "a", "expect": {"pattern": "("}})
    line = complaint("eval", "suite", path, "--model", "demo-chat")
    assert f"{path}:2: expect.pattern: not a pattern that can be matched in linear time" in line
