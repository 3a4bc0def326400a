"""`firsttoken doctor` as people and programs run it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inference.bundled import EMBEDDER
from inference.provisioning.doctor import Level
from tests.serving import ROOT, clean_environment
from worker.cli.doctor import models_finding
from worker.config import load
from worker.engines.model_file import ModelTable, read_models

TIMEOUT_S = 100


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "worker", "doctor", *arguments]
    environment = clean_environment()
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def home(make_home: Callable[[], Path]) -> str:
    return str(make_home())


def test_a_machine_that_can_serve_is_told_so_line_by_line(home: str) -> None:
    done = doctor("--home", home, "--draft", "demo-draft")
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.split()[1] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert names[:7] == ["disk", "database", "embedders", "cpu", "backend", "threads", "barriers"]
    assert names[7:] == ["model", "draft", "memory", "self-test", "speed", "attention"]
    assert "pgvector" in done.stdout and "tokens/s" in done.stdout


def test_problems_are_named_in_the_exit_code_and_in_json(home: str) -> None:
    database = ("--database-url", "postgresql://nobody@127.0.0.1:1/none")
    done = doctor("--home", home, "--json", "--model", str(EMBEDDER), "--embedders", "nothing", *database)
    assert done.returncode == 1
    assert done.stderr == "firsttoken: not ready to serve because of database, embedders, model\n"
    report = json.loads(done.stdout)
    assert report["ok"] is False
    levels = {finding["name"]: finding["level"] for finding in report["findings"]}
    assert levels["database"] == levels["model"] == "problem" and levels["disk"] == "ok"
    assert all(finding["todo"] for finding in report["findings"] if finding["level"] == "problem")


def test_a_model_that_is_not_here_yet_comes_with_the_way_to_get_it(home: str) -> None:
    done = doctor("--home", home, "--model", "qwen3-8b")
    assert done.returncode == 1 and "firsttoken models pull qwen3-8b" in done.stdout


def test_a_home_that_cannot_be_used_is_a_problem_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = doctor("--home", str(tmp_path / "file"), "--database-url", "postgresql://nobody@127.0.0.1:1/none")
    assert done.returncode == 1
    assert "problem  disk" in done.stdout and "--home" in done.stdout


def test_several_models_are_told_with_what_each_needs_and_whether_all_have_room(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[models.small]\nmodel = "demo-draft"\n[models.large]\nmodel = "demo-chat"\n')
    config = load({"home": str(tmp_path), "memory_mb": "2000"}, {})
    file = read_models(config)
    assert file is not None
    fits = models_finding({name: table.applied(config) for name, table in file.models.items()})
    assert fits.level is Level.OK and fits.text.startswith("small ") and ", large " in fits.text
    tight = load({"home": str(tmp_path), "memory_mb": "70", "parked_mb": "0"}, {})
    too_much = models_finding({name: table.applied(tight) for name, table in file.models.items()})
    assert too_much.level is Level.WARNING and "they replace each other" in too_much.text
    gone = models_finding({"large": ModelTable(model="huge").applied(config)})
    assert gone.level is Level.PROBLEM and gone.text.startswith("large: no model huge")
