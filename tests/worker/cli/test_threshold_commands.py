"""The thresholds of a cascade are chosen from cases."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving import ROOT
from tests.worker.cli.test_main import complaint
from tests.worker.cli.test_suite_command import SUM, cases
from worker.cli.main import main

MODELS = """
[models.small]
model = "demo-draft"
price = { engine_second = 0.2 }

[models.large]
model = "demo-chat"

[routes.auto]
policy = "cascade"
first = "small"
then = "large"
"""


@pytest.fixture
def home(make_home: Callable[[], Path]) -> Path:
    home = make_home()
    (home / "models.toml").write_text(MODELS)
    return home


@pytest.mark.long
@pytest.mark.any_answer("thresholds are chosen, whichever they are")
def test_thresholds_are_chosen_and_written_with_a_report(home: Path, tmp_path: Path, capsys: object) -> None:
    report, policy, told = tmp_path / "route.md", tmp_path / "route.toml", tmp_path / "route.json"
    files = ["--report", str(report), "--policy", str(policy), "--json", str(told)]
    suite = str(ROOT / "benchmarks" / "suites" / "bundled.jsonl")
    assert main(["eval", "route", suite, "--home", str(home), "--at-once", "2", *files]) == 0
    route = tomllib.loads(policy.read_text())["routes"]["auto"]
    assert (route["policy"], route["first"], route["then"]) == ("cascade", "small", "large")
    found = json.loads(told.read_text())
    assert sum(found["cases"].values()) >= 30 and found["points"]["then"]["cost"] > 0
    assert "## The policy" in report.read_text() and report.with_suffix(".svg").read_text().startswith("<svg")


def test_without_a_cascade_there_is_nothing_to_choose(home: Path, tmp_path: Path) -> None:
    path = cases(tmp_path, SUM)
    assert "there is no cascade other: models.toml has auto" in complaint(
        "eval", "route", path, "--home", str(home), "--route", "other"
    )
    (home / "models.toml").unlink()
    assert "there is no models.toml in the home folder" in complaint("eval", "route", path, "--home", str(home))
