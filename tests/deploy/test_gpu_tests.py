"""How the tests on a GPU are run: file by file, and once more what a crash of its driver took along."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy import gpu_tests
from deploy.builds import Result
from deploy.gpu_tests import NOTHING, TESTS, Outcome, Runner, files, summary

ROOT = Path(__file__).resolve().parents[2]
GOOD, BAD, CRASHED = Result("12 passed", 0), Result("1 failed, 11 passed", 1), Result("killed by SIGSEGV", -11)


def test_each_file_of_a_folder_is_run_by_itself() -> None:
    found = list(files([]))
    assert "tests/gpu/test_device.py" in found and "tests/worker/engines/test_contract.py" in found
    assert all((ROOT / file).is_file() for file in found) and len(set(found)) == len(found) > len(TESTS)


def test_what_is_named_is_run_alone() -> None:
    named = ["tests/gpu", "-x", "tests/inference/test_model.py::test_it"]
    assert list(files(named)) == [
        "tests/gpu/test_device.py",
        "tests/gpu/test_worker.py",
        "tests/inference/test_model.py::test_it",
    ]


def test_who_needed_a_second_run_is_told_even_where_all_passed() -> None:
    outcomes = {"a.py": Outcome(GOOD), "b.py": Outcome(CRASHED, GOOD), "c.py": Outcome(BAD, BAD)}
    assert list(summary(outcomes)) == [
        "b.py: killed by SIGSEGV; again: 12 passed",
        "c.py: 1 failed, 11 passed; again: 1 failed, 11 passed",
        "2 of 3 files passed, 1 of them in a second run",
    ]
    assert list(summary({"a.py": Outcome(GOOD)})) == ["1 of 1 files passed"]
    assert Outcome(Result("no result", NOTHING)).passed and not list(summary({}))


PASSES = "def test_it() -> None: ...\n"
CRASHES_ONCE = """
import os
from pathlib import Path

def test_before() -> None: ...

def test_it() -> None:
    been = Path(__file__).with_suffix(".been")
    if not been.exists():
        been.touch()
        {ends}

def test_behind() -> None: ...
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(gpu_tests, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(gpu_tests, "ROOT", tmp_path)
    quick = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return Runner(tmp_path / "vulkan", quick, ["-p", "pytest_timeout", "tests/named.py"])


@pytest.mark.parametrize(
    ("content", "first", "second"),
    [
        (PASSES, "1 passed", None),
        (CRASHES_ONCE.format(ends="os.kill(os.getpid(), 11)"), "killed by SIGSEGV", "3 passed"),
        (CRASHES_ONCE.format(ends="raise AssertionError"), "1 failed, 2 passed", "1 passed"),
        ("def test_it() -> None: raise AssertionError\n", "1 failed", "1 failed"),
    ],
    ids=["passes", "crashes once", "fails once", "fails"],
)
def test_what_failed_or_crashed_is_run_once_more(
    content: str, first: str, second: str | None, runner: Runner, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(content)
    outcome = runner.outcome("test_it.py", again=True)
    assert (outcome.first.summary, outcome.second.summary if outcome.second else None) == (first, second)
    assert outcome.passed is (second != "1 failed")


def test_on_real_hardware_a_crash_counts(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CRASHES_ONCE.format(ends="os.kill(os.getpid(), 11)"))
    outcome = runner.outcome("test_it.py", again=False)
    assert not outcome.passed and outcome.second is None


def test_help_needs_nothing_but_the_standard_library() -> None:
    command = [sys.executable, "-S", "-E", "-m", "deploy.gpu_tests", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "--hardware" in done.stdout
