"""The README and the other pages keep what they promise."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")  # relative ones
LINES_MAX = {"docs/ARCHITECTURE.md": 250, "benchmarks/README.md": 200}  # what a newcomer reads to the end
ENTRIES_MAX, ENTRY_LINES_MAX = 60, 12  # of the decision log; the lines are those of the text
NOTE_LINES_MAX = 2  # of the history


def test_the_first_lines_are_the_two_commands() -> None:
    commands = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    make")]
    assert commands[:2] == ["make run", "make test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    targets = [target.split("#")[0] for target in LINK.findall(page.read_text("utf-8"))]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", LINES_MAX)
def test_a_page_for_newcomers_can_be_read_to_its_end(page: str) -> None:
    assert len((ROOT / page).read_text("utf-8").splitlines()) <= LINES_MAX[page]


def test_the_decision_log_is_what_binds_today_and_no_more() -> None:
    entries = re.split(r"^## (?!Area:)", (ROOT / "docs/LOG.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert len(entries) <= ENTRIES_MAX
    texts = {entry.splitlines()[0]: list(filter(None, entry.splitlines()[2:])) for entry in entries}
    assert len(texts) == len(entries)
    assert [heading for heading, (date, *_) in texts.items() if not re.match(r"\*20\d\d-\d\d-\d\d", date)] == []
    assert [heading for heading, (_, *lines) in texts.items() if len(lines) > ENTRY_LINES_MAX] == []


def test_a_note_of_the_history_is_short() -> None:
    notes = re.findall(r"^- .*(?:\n  .*)*", (ROOT / "docs/HISTORY.md").read_text("utf-8"), re.MULTILINE)
    assert notes and [note for note in notes if note.count("\n") >= NOTE_LINES_MAX] == []


def test_the_decision_log_names_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    names = {re.split(r"[\[<>=~! ]", line)[0] for group in (project["dependencies"], *extras) for line in group}
    words = set(re.findall(r"[\w-]+", (ROOT / "docs/LOG.md").read_text("utf-8")))
    assert names - words == set()


def test_the_installed_command_is_a_function() -> None:
    """What `make run` starts; the tests themselves start the worker as a module."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert [name for name, target in scripts.items() if not callable(EntryPoint(name, target, "").load())] == []
