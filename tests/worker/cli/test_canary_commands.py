"""`firsttoken canary` from its start to its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from migrations.embedded import EmbeddedPostgres
from tests.worker.cli.test_main import complaint, firsttoken
from worker.cli.canary_commands import report
from worker.telemetry.trial import Answer, Canary, Evidence, State

AGENTS = """
[agents.support]
instructions = "You are as always."

[agents.new]
instructions = "You are new."
"""


@pytest.fixture(scope="module")
def home(make_home: Callable[[], Path]) -> Iterator[str]:
    home = make_home()
    (home / "agents.toml").write_text(AGENTS)
    with EmbeddedPostgres(home):
        yield str(home)


def test_a_canary_is_started_compared_promoted_and_ended(home: str) -> None:
    started = firsttoken(
        *("canary", "start", "trial", "--agent", "support", "--treatment", "new", "--share", "0.2"),
        *("--margin", "late=0.1", "--home", home),
    )
    assert "new will answer 20% of the conversations of agent support" in started.stdout, started.stderr
    told = json.loads(firsttoken("canary", "status", "trial", "--json", "--home", home).stdout)
    assert (told["state"], told["verdict"], told["measures"][1]["margin"]) == ("running", "go on", 0.1)
    assert "new now answers all conversations" in firsttoken("canary", "promote", "trial", "--home", home).stdout
    assert (
        "agent support answers all of its conversations again"
        in firsttoken("canary", "abort", "trial", "--home", home).stdout
    )
    assert "canary trial is aborted" in complaint("canary", "promote", "trial", "--home", home)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--treatment", "nobody"], "there is no agent nobody in the file of --agents: it has support, new"),
        (["--treatment", "new", "--agent", "new"], "the treatment is the agent itself"),
        (["--treatment", "new", "--margin", "joy=0.1"], "there is no measure joy: the measures are failed, late"),
    ],
)
def test_what_cannot_be_tried_is_one_line(home: str, arguments: list[str], said: str) -> None:
    assert said in complaint("canary", "start", "another", *arguments, "--home", home)


def test_the_report_stands_both_kinds_side_by_side() -> None:
    canary = Canary(uuid4(), "trial", "support", "new", 0.2, {}, State.RUNNING)
    answers = [Answer(bool(i % 2), bool(i % 2), None, 200.0, 20.0, 300) for i in range(40)]
    title, counts, _, failed, late, *_, decision = report(canary, Evidence(answers))
    assert title == "trial: new for 20% of agent support, running"
    assert counts == "20 conversations in the control group, 20 in the treatment group"
    assert failed.split()[:3] == ["failed", "0.0%", "100.0%"] and failed.endswith("worse")
    assert late.split()[:3] == ["late", "-", "-"] and late.endswith("open")
    assert decision == "roll back: failed is worse by more than 0.02, after 20 pairs"
